"""What one pass over a rank-aware script knows."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .bindings import Bindings
from .constants import Constants
from .script import Script
from .taken import IDENTITIES, WRITTEN_FUNCTIONS
from .tree import dotted, tail


@dataclass
class PassState:
    """What a pass tells the next ones: what says so may be gone by then."""

    names: dict[str, Any] = field(default_factory=dict)  # that hold ranks
    accelerators: set[str] = field(default_factory=lambda: {"accelerator", "self.accelerator"})
    divided: set[str] = field(default_factory=set)  # names of sizes that the ranks share
    emptied: set[str] = field(default_factory=set)  # functions whose last statement went


class Pass:
    """Its tree, what is known of ranks, and which names hold the same."""

    def __init__(self, script: Script, state: PassState) -> None:
        self.script, self.state = script, state
        self.bindings = Bindings(script)
        for node in script.all(ast.Assign):
            if tail(node.value) == "Accelerator" and isinstance(node.value, ast.Call):
                state.accelerators.update(filter(None, map(dotted, node.targets)))
        self.accelerators = state.accelerators
        self.constants = Constants(script, self.bindings, state.names, state.accelerators)
        for node in script.all(ast.Assign, ast.AugAssign):
            if self.constants.is_ranked(node.value):
                state.divided.add(dotted(node.targets[0] if isinstance(node, ast.Assign) else node.target))
        froms = [(n.module or "", a.asname or a.name, a.name) for n in script.all(ast.ImportFrom) for a in n.names]
        self._free = WRITTEN_FUNCTIONS | {name for module, name, _ in froms if module.startswith("accelerate")}
        self._of_torch = {name for module, name, _ in froms if module.startswith("torch.distributed")}
        self._modules = {"dist", "torch.distributed"} | {
            *(a.asname for n in script.all(ast.Import) for a in n.names if a.asname and a.name == "torch.distributed"),
            *(name for module, name, real in froms if (module, real) == ("torch", "distributed")),
        }

    def gives_back(self, call: ast.expr) -> bool:
        """Tell whether a call gives what it gets, once there is one process: a migration's or Accelerate's."""
        if not isinstance(call, ast.Call) or tail(call) not in IDENTITIES:
            return False
        owner = dotted(call.func).rpartition(".")[0]
        return owner in self.accelerators if owner else tail(call) in self._free

    def is_of_processes(self, call: ast.Call) -> bool:
        """Tell whether a call is of ``torch.distributed`` or of Accelerate, and of nothing that only sounds like it."""
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if owner is None:
            return tail(call) in self._free | self._of_torch
        return dotted(owner) in self._modules | self.accelerators or any(
            tail(c) == "Accelerator" for c in self.bindings.origins(owner)
        )

    def is_no_sync(self, node: ast.expr) -> bool:
        """Tell whether an expression is ``model.no_sync()``, or ``model.no_sync() if now else nullcontext()``."""
        if isinstance(node, ast.IfExp):
            return {tail(node.body), tail(node.orelse)} == {"no_sync", "nullcontext"}
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync"
