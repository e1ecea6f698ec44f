"""What a script trains, on what, and what its migration needs: gathered once, read by every rule."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .bindings import Key
from .container_bindings import ContainerBindings
from .dialects import Dialect
from .flow import Flow
from .loaders import Loader, find
from .script import Script
from .tree import Function, dotted, tail
from .undealt import repeat_lists, take_whole

OPTIMIZERS = {
    *("SGD", "Adam", "AdamW", "RMSprop", "LBFGS", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD"),
    *("SparseAdam", "Adafactor", "LARS", "LAMB", "Lamb", "Ranger", "Lion", "Muon", "AdaBound", "BertAdam", "FusedAdam"),
}


@dataclass(eq=False)
class Plan:
    """One script on its way to one dialect."""

    script: Script
    dialect: Dialect
    per_device: bool = False
    folder: Path | None = None  # of the script
    helpers: set[str] = field(default_factory=set)
    asked: set[ast.Call] = field(default_factory=set)  # ``x.parameters()`` that optimizers get
    reasons: set[str] = field(default_factory=set)  # why losses are left to a person
    wrappers: dict[Key, str] = field(default_factory=dict)  # names of the wrapped models
    wraps: list[tuple[ast.stmt, list[str]]] = field(default_factory=list)  # lines that wrap, and the statement above
    used_in: dict[ast.For | None, list[str]] = field(default_factory=dict)  # wrappers that a loop trains
    samplers: set[tuple[ast.stmt, str]] = field(default_factory=set)  # names above the statements that use them
    alike: set[ast.Call] = field(default_factory=set)  # what draws the same on every rank
    epochs: set[tuple[ast.AST, str]] = field(default_factory=set)  # lines that set them, and the statement below
    has_unused: bool = False  # weights of a wrapped model get no gradient
    draws_alike: bool = False  # a loader that feeds the training is left to a person: it gives all ranks the same
    keeps_buffers: bool = False  # a forward must not write to buffers that another forward saved

    def __post_init__(self) -> None:
        """Follow what the script does."""
        self._trained: dict[ast.AST, bool] = {}
        self.bindings = ContainerBindings(self.script, self.folder)
        self.flow = Flow(self.script, self.bindings, self.trains)
        self.loaders = find(self.script, self.bindings, self.flow, self.trains)
        if take_whole(self.script, self.bindings, self.flow, self.loaders):
            whole = {call for call, loader in self.loaders.items() if loader.whole}
            dealt, self.flow = self.flow, Flow(self.script, self.bindings, self.trains, whole)
            repeat_lists(dealt, self.flow)

    def use(self, helper: str) -> str:
        """Ask for a helper at the top of the script; gives its name."""
        self.helpers.add(helper)
        return helper

    @cached_property
    def backwards(self) -> list[ast.Call]:
        """Every ``x.backward()``."""
        return [c for c in self.script.calls() if isinstance(c.func, ast.Attribute) and c.func.attr == "backward"]

    @cached_property
    def _training(self) -> set[Function]:
        found = {f for c in self.backwards if (f := self.script.function(c)) is not None}
        while True:
            callers = {
                f for g in found for c in self.bindings.callers.get(g, ()) if (f := self.script.function(c)) is not None
            }
            if callers <= found:
                return found
            found |= callers

    def trains(self, node: ast.AST) -> bool:
        """Tell whether a backward runs in a node, or in what it calls."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return node in self._training
        if node not in self._trained:
            inside = set(ast.walk(node))
            self._trained[node] = any(call in inside for call in self.backwards) or any(
                self.bindings.callee(c) in self._training for c in inside if isinstance(c, ast.Call)
            )
        return self._trained[node]

    def in_training(self, node: ast.AST) -> bool:
        """Tell whether a node stands in a function that trains, or at the top of a script that does."""
        return self.trains(self.script.function(node) or self.script.tree)

    def learns(self, node: ast.AST) -> bool:
        """Tell whether gradients are wanted of what a node computes."""
        for outer in self.script.above(node):
            if isinstance(outer, ast.With) and any("no_grad" in ast.unparse(i) or "inference_mode" in ast.unparse(i)
                                                   for i in outer.items):  # fmt: skip
                return False
            if isinstance(outer, ast.For) and outer in self.flow.loader_loops:
                return self.trains(outer)
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if any("no_grad" in ast.unparse(d) or "inference_mode" in ast.unparse(d) for d in outer.decorator_list):
                    return False
                inside = set(ast.walk(outer))
                if any(call in inside for call in self.backwards):
                    return True
                return any(self.learns(call) for call in self.bindings.callers.get(outer, ()) if call not in inside)
        return any(self.script.function(call) is None for call in self.backwards)

    @cached_property
    def was_wrapped(self) -> bool:
        """The script uses nn.DataParallel."""
        return any(tail(call) == "DataParallel" for call in self.script.calls())

    @cached_property
    def always_wrapped(self) -> bool:
        """The script uses nn.DataParallel whatever the host has, so that its keys begin with ``module.``."""
        calls = [c for c in self.script.calls() if tail(c) == "DataParallel"]
        return any(
            not any(isinstance(n, ast.If) and "cuda" in ast.unparse(n.test) for n in self.script.above(c))
            for c in calls
        )

    def feeding(self, loop: ast.For) -> list[Loader]:
        """List the loaders that a loop may run over, as far as this file tells."""
        return [loader for loader in self.loaders.values() if loop in loader.loops]

    @cached_property
    def is_fed(self) -> bool:
        """Loaders feed the training; where none does, each rank makes the same batches."""
        return self.is_pulled or any(self.trains(loop) for loop in self.flow.loader_loops)

    @cached_property
    def is_pulled(self) -> bool:
        """No loop over a loader trains, and batches are pulled from one: ``next(batches)``."""
        looped = any(self.trains(loop) for loop in self.flow.loader_loops)
        return not looped and any(loader.trains and loader.pulled for loader in self.loaders.values())

    def pads(self, loop: ast.For) -> bool:
        """Tell whether a loop over a loader may see rows twice, so that all ranks have as many."""
        feeding = self.feeding(loop)
        return any(loader.pads for loader in feeding) if feeding else self.trains(loop)

    def loop_of(self, node: ast.AST) -> ast.For | None:
        """Find the loop over a loader that a node stands in, in the same function."""
        for outer in self.script.above(node):
            if isinstance(outer, ast.For) and outer in self.flow.loader_loops:
                return outer
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                return None
        return None

    @cached_property
    def optimizers(self) -> list[ast.Call]:
        """Every construction of an optimizer."""
        return [c for c in self.script.calls() if (tail(c) in OPTIMIZERS or _is_named(c)) and c.args + c.keywords]

    @cached_property
    def models(self) -> dict[Key, ast.Call | None]:
        """The groups of names that hold what an optimizer trains, each with its (first) optimizer."""
        found: dict[Key, ast.Call | None] = {}
        for optimizer in self.optimizers:
            for node in self._trained_by(optimizer):
                group = self.bindings.group(node)
                if group is not None:
                    found.setdefault(group, optimizer)
        if not found and self.backwards:
            found.update(self._passed_elsewhere())
        if not found and self.backwards:  # weights that the script updates itself
            for call in self.script.calls():
                if tail(call) == "parameters" and isinstance(call.func, ast.Attribute):
                    group = self.bindings.group(whole(call.func.value))
                    if group is not None:
                        found.setdefault(group, None)
        return found

    def _passed_elsewhere(self) -> dict[Key, ast.Call | None]:
        """List what a function of another file gets to make an optimizer of, and that is called to learn."""
        made = [n.value for n in self.script.all(ast.Assign) if isinstance(n.value, ast.Call) and _makes_optimizer(n)]
        called = [
            c.func for c in self.script.calls() if isinstance(c.func, (ast.Name, ast.Attribute)) and self.learns(c)
        ]
        found: dict[Key, ast.Call | None] = {}
        for call in made:
            for argument in [*call.args, *(k.value for k in call.keywords)]:
                group = (
                    self.bindings.group(argument) if dotted(argument) and self.bindings.callee(call) is None else None
                )
                if group is not None and any(self.bindings.holds(name, group) for name in called):
                    found.setdefault(group, call)
        return found

    def is_model(self, node: ast.AST) -> bool:
        """Tell whether a name holds a trained model."""
        return any(self.bindings.holds(node, group) for group in self.models)

    def roots(self, optimizer: ast.Call) -> list[ast.AST]:
        """List what an optimizer gets to train: its argument, and what the list of that name is made of."""
        roots: list[ast.AST] = [*optimizer.args[:1], *(k.value for k in optimizer.keywords if k.arg == "params")]
        named = {dotted(r) for r in roots if isinstance(r, (ast.Name, ast.Attribute))} - {""}
        if named:
            roots += [n for n in self.script.all(ast.Assign, ast.AugAssign) if named & set(map(dotted, _targets(n)))]
            roots += [
                c
                for c in self.script.calls()
                if isinstance(c.func, ast.Attribute)
                and c.func.attr in ("append", "extend")
                and dotted(c.func.value) in named
            ]
            roots += [loop for loop in self.script.all(ast.For) if any(_appends_to(n, named) for n in ast.walk(loop))]
        return roots

    def _trained_by(self, optimizer: ast.Call) -> list[ast.expr]:
        asked = [
            call
            for root in self.roots(optimizer)
            for call in ast.walk(root)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in ("parameters", "named_parameters")
        ]
        self.asked.update(asked)
        return [whole(call.func.value) for call in asked]  # type: ignore[attr-defined]


def _is_named(call: ast.Call) -> bool:
    """Tell whether an optimizer is asked for by its name: ``getattr(optim, name)(...)``."""
    made = call.func
    return isinstance(made, ast.Call) and tail(made) == "getattr" and "optim" in dotted(next(iter(made.args), None))


def _makes_optimizer(node: ast.Assign) -> bool:
    return "optim" in dotted(node.targets[0]).lower() or "optim" in tail(node.value).lower()


def _appends_to(node: ast.AST, named: set[str]) -> bool:
    return isinstance(node, ast.Call) and tail(node) == "append" and dotted(getattr(node.func, "value", None)) in named


def whole(node: ast.expr) -> ast.expr:
    """Find the model that a layer is a part of: ``model`` for ``model.module.fc``."""
    while isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        node = node.value
    return node


def _targets(node: ast.AST) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
