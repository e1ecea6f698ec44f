"""What one pass over a rank-aware script knows."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from .bindings import Bindings
from .constants import Constants
from .script import Script
from .taken import IDENTITIES, OWN_FUNCTIONS
from .tree import dotted, tail


@dataclass
class Known:
    """What a pass tells the next ones: what says so may be gone by then."""

    names: dict[str, Any] = field(default_factory=dict)  # that hold ranks
    accelerators: set[str] = field(default_factory=lambda: {"accelerator", "self.accelerator"})


class Pass:
    """Its tree, what is known of ranks, and which names hold the same."""

    def __init__(self, script: Script, known: Known, first: bool) -> None:
        self.script, self.first = script, first
        self.bindings = Bindings(script)
        self.constants = Constants(script, self.bindings, known.names)
        for node in script.all(ast.Assign):
            if tail(node.value) == "Accelerator" and isinstance(node.value, ast.Call):
                known.accelerators.update(filter(None, map(dotted, node.targets)))
        self.accelerators = known.accelerators
        froms = (n for n in script.all(ast.ImportFrom) if (n.module or "").startswith("accelerate"))
        self._free = OWN_FUNCTIONS | {a.asname or a.name for n in froms for a in n.names}

    def gives_back(self, call: ast.expr) -> bool:
        """Tell whether a call gives what it gets, once there is one process: a migration's or Accelerate's."""
        if not isinstance(call, ast.Call) or tail(call) not in IDENTITIES:
            return False
        owner = dotted(call.func).rpartition(".")[0]
        return owner in self.accelerators if owner else tail(call) in self._free

    def is_no_sync(self, node: ast.expr) -> bool:
        """Tell whether an expression is ``model.no_sync()``, or ``model.no_sync() if now else nullcontext()``."""
        if isinstance(node, ast.IfExp):
            return {tail(node.body), tail(node.orelse)} == {"no_sync", "nullcontext"}
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "no_sync"
