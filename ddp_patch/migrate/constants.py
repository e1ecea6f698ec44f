"""What rank-aware code says on one process: the rank is 0, there is one of them, and it is the main one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from .bindings import Bindings
from .evaluation import UNKNOWN, Evaluation
from .script import Script
from .tree import Function, dotted, keyword, tail

_COUNTED = {  # what gets the number of processes, and where
    **dict.fromkeys(("spawn", "start_processes"), ("nprocs", 2)),
    "notebook_launcher": ("num_processes", 2),
    "init_process_group": ("world_size", 3),
    "DistributedSampler": ("num_replicas", 1),
}
_STARTING = {"spawn", "Process", "start_processes", "notebook_launcher"}  # give a function the number of its process
_PLACING = {  # what takes such a number
    *(
        "init_process_group",
        "DistributedSampler",
        "DistributedDataParallel",
        "DDP",
        "set_device",
        "device",
        "to",
        "cuda",
    ),
}


class Constants(Evaluation):
    """Values of names and expressions that depend on the rank alone."""

    def __init__(self, script: Script, bindings: Bindings, names: dict[str, Any], accelerators: set[str]) -> None:
        self.script, self.bindings, self.accelerators = script, bindings, accelerators
        self.names = names  # of earlier passes too: an assignment may be gone before the last use is
        self._count()
        functions = [*script.all(ast.FunctionDef, ast.AsyncFunctionDef)]
        for _ in range(3):
            assigned: dict[str, list[Any]] = {}
            ranked: set[str] = set()
            for function in functions:
                numbers = self._process_numbers(function)
                for name in _parameters(function):
                    full = f"{self._scope(function)}:{name}"
                    assigned.setdefault(full, []).append(numbers.get(name, UNKNOWN))
                    ranked |= {full} if name in numbers else set()
            for target, expression in self._stores():
                full = self._name(target)
                assigned.setdefault(full, []).append(UNKNOWN if expression is None else self.value(expression))
                if expression is not None and not isinstance(expression, ast.BinOp) and self.is_ranked(expression):
                    ranked.add(full)
            for name in ranked:  # and nothing gives it something else
                if all(value is not UNKNOWN and value == assigned[name][0] for value in assigned[name]):
                    self.names[name] = assigned[name][0]

    def _stores(self) -> Iterator[tuple[ast.expr, ast.expr | None]]:
        """Give what is stored to, and what it gets, if that can be said."""
        for node in self.script.all(ast.Name, ast.Attribute):
            if not isinstance(node.ctx, ast.Store):
                continue
            holder, place = self.script.parents[node], node
            if isinstance(holder, ast.Tuple):
                holder, place = self.script.parents[holder], holder
            value = holder.value if isinstance(holder, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None
            if isinstance(place, ast.Tuple):
                values = value.elts if isinstance(value, ast.Tuple) else []
                value = values[place.elts.index(node)] if len(values) == len(place.elts) else None
            if not (isinstance(holder, ast.AugAssign) and self.changes_nothing(holder)):
                yield node, value

    def changes_nothing(self, node: ast.AugAssign) -> bool:
        """Tell whether a statement adds 0, or multiplies or divides by 1."""
        value = self.value(node.value)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return value is not UNKNOWN and value == 0
        return isinstance(node.op, (ast.Mult, ast.Div)) and value is not UNKNOWN and value == 1

    def _count(self) -> None:
        """Find names of the number of processes by what gets them, and what torchvision's scripts are told."""
        counted: list[ast.expr] = []
        for call in self.script.calls():
            where = _COUNTED.get(tail(call))
            counted += [argument] if where and (argument := keyword(call, *where)) is not None else []
            if tail(call) == "init_distributed_mode" and call.args and (name := dotted(call.args[0])):
                gpu = {} if "--gpu" in self.script.text else {f"{name}.gpu": 0}
                self.names.update({f"{name}.distributed": False, f"{name}.rank": 0, f"{name}.world_size": 1, **gpu})
        for node in counted:  # and what the callers give for it
            if dotted(node):
                self.names[self._name(node)] = 1
            function = self.script.function(node)
            if function is not None and dotted(node) in _parameters(function):
                calls = self.bindings.callers.get(function, ())
                passed = [self.bindings.arguments(call, function).get(dotted(node)) for call in calls]
                counted += [value for value in passed if value is not None and value not in counted]

    def _process_numbers(self, function: Function) -> dict[str, Any]:
        """Find the parameters that are numbers of processes; the rank of a matrix is none."""
        args = {*_parameters(function)}
        pair = "local_rank" in args or {"rank", "world_size"} <= args
        found: dict[str, Any] = dict.fromkeys(args & {"local_rank"}, 0)
        if "world_size" in args and (pair or self._gets_world(function)):
            found["world_size"] = 1
        if "rank" in args and (pair or self._gets_rank(function)):
            found["rank"] = 0
        return found

    def _gets_world(self, function: Function) -> bool:
        calls = self.bindings.callers.get(function, ())
        passed = [self.bindings.arguments(call, function).get("world_size") for call in calls]
        return bool(passed) and all(v is not None and self.is_ranked(v) and self.value(v) == 1 for v in passed)

    def _gets_rank(self, function: Function) -> bool:
        callers = self.bindings.callers.get(function, ())
        passed = [self.bindings.arguments(call, function).get("rank") for call in callers]
        inside = [n for n in ast.walk(function) if isinstance(n, ast.Call) and tail(n) in _PLACING]
        return (
            any(value is not None and self.is_ranked(value) for value in passed)
            or any(tail(c) in _STARTING and function.name in map(dotted, ast.walk(c)) for c in self.script.calls())
            or any(dotted(n) == "rank" for call in inside for n in _direct_arguments(call))
        )

    def is_known(self, node: ast.AST) -> bool:
        """Tell whether a name holds a number of processes."""
        return self._name(node) in self.names

    def _name(self, node: ast.AST) -> str:
        """Give a name, with the function or class that it belongs to; ``args.rank`` is the same everywhere."""
        key, name = self.bindings.key(node), dotted(node)
        if key is None or ("." in name and not name.startswith("self.")):
            return name
        owners: list[object] = [key[0]]
        for owner in owners:  # and what a class inherits from
            bases = owner.bases if isinstance(owner, ast.ClassDef) else []
            inherited = map(self.bindings.classes.get, map(tail, bases))
            owners += [base for base in inherited if base is not None and base not in owners]
        names = [f"{self._scope(owner)}:{name}" for owner in owners]
        return next((found for found in names if found in self.names), names[0])

    def _scope(self, node: object) -> str:
        around = [node, *self.script.above(node)] if isinstance(node, ast.AST) else []
        return ".".join(getattr(n, "name", "") for n in around)


def _parameters(function: Function) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _direct_arguments(call: ast.Call) -> Iterator[ast.AST]:
    """Give what stands in the arguments of a call, but not in those of calls in it."""
    stack: list[ast.AST] = [*call.args, *(k.value for k in call.keywords)]
    while stack:
        node = stack.pop()
        yield node
        stack += [] if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
