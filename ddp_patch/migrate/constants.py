"""What rank-aware code says on one process: the rank is 0, there is one of them, and it is the main one."""

from __future__ import annotations

import ast
import operator
from typing import Any

from .bindings import Bindings
from .script import Script
from .tree import Function, dotted, tail

UNKNOWN = object()
_RANKS = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
_WORLDS = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS"}
_CALLS: dict[str, Any] = {
    **dict.fromkeys(("get_rank", "get_local_rank"), 0),
    **dict.fromkeys(("get_world_size",), 1),
    **dict.fromkeys(("is_initialized", "is_dist_avail_and_initialized", "is_dist_initialized"), False),
    **dict.fromkeys(("is_main_process", "is_rank_zero", "is_master"), True),
}
_NAMES: dict[str, Any] = {
    **dict.fromkeys(("local_rank", "ddp_rank", "ddp_local_rank", "process_index", "local_process_index"), 0),
    **dict.fromkeys(("world_size", "ddp_world_size", "num_processes"), 1),
    **dict.fromkeys(("master_process", "is_main_process", "is_local_main_process"), True),
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
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b, ast.Is: operator.eq, ast.IsNot: operator.ne,
}  # fmt: skip


class Constants:
    """Values of names and expressions that depend on the rank alone."""

    def __init__(self, script: Script, bindings: Bindings, known: dict[str, Any]) -> None:
        self.script, self.bindings = script, bindings
        self.names = known  # of earlier passes too: an assignment may be gone before the last use is
        for _ in range(3):
            for function in script.all(ast.FunctionDef, ast.AsyncFunctionDef):
                for name in self._told(function):
                    self.names[f"{self._scope(function)}:{name}"] = _NAMES.get(name, 0)
            for node in script.all(ast.Assign):
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for target, value in zip(targets, values, strict=False):
                    found = self.value(value) if dotted(target) and not isinstance(value, ast.BinOp) else UNKNOWN
                    if found is not UNKNOWN and self.is_ranked(value):
                        self.names[self._name(target)] = found

    def _told(self, function: Function) -> set[str]:
        """Find the parameters that are numbers of processes; the rank of a matrix is none."""
        args = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        found = args & {"local_rank", "world_size"}
        return found | ({"rank"} if "rank" in args and (found or self._gets_rank(function)) else set())

    def _gets_rank(self, function: Function) -> bool:
        callers = self.bindings.callers.get(function, ())
        given = [self.bindings.arguments(call, function).get("rank") for call in callers]
        inside = [n for n in ast.walk(function) if isinstance(n, ast.Call) and tail(n) in _PLACING]
        return (
            any(value is not None and self.is_ranked(value) for value in given)
            or any(tail(c) in _STARTING and function.name in map(dotted, ast.walk(c)) for c in self.script.calls())
            or any(dotted(n) == "rank" for call in inside for n in ast.walk(call))
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

    def is_ranked(self, node: ast.AST) -> bool:
        """Tell whether an expression mentions a rank."""
        return any(self._source(n) is not UNKNOWN for n in ast.walk(node))

    def _source(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = dotted(node)
            if (known := self._name(node)) in self.names:
                return self.names[known]
            last = name.rsplit(".", 1)[-1]
            return _NAMES.get(last, UNKNOWN) if "." in name else UNKNOWN
        if isinstance(node, ast.Call):
            if tail(node) in _CALLS and not node.args:
                return _CALLS[tail(node)]
            if dotted(node.func) in ("os.environ.get", "os.getenv") and node.args:
                found = _variable(node.args[0])
                given = self.value(node.args[1]) if len(node.args) > 1 and found is not UNKNOWN else UNKNOWN
                return found if given is UNKNOWN else given
        if isinstance(node, ast.Subscript) and dotted(node.value) == "os.environ" and isinstance(node.ctx, ast.Load):
            return _variable(node.slice)
        return UNKNOWN

    def value(self, node: ast.AST) -> Any:
        """Work out an expression, if the rank is all that it depends on."""
        known = self._source(node)
        if known is not UNKNOWN:
            return known
        match node:
            case ast.Constant():
                return node.value
            case ast.Call() if tail(node) in ("int", "bool") and len(node.args) == 1:
                inner = self.value(node.args[0])
                if isinstance(inner, str):
                    return int(inner) if inner.lstrip("-").isdigit() else inner
                return inner if inner is UNKNOWN or inner is None else int(inner)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.value(node.operand)
                return UNKNOWN if inner is UNKNOWN else not inner
            case ast.UnaryOp(op=ast.USub()):
                inner = self.value(node.operand)
                return -inner if isinstance(inner, (int, float)) else UNKNOWN
            case ast.BoolOp():
                return self._both(node)
            case ast.BinOp() if type(node.op) in _OPERATORS:
                return _apply(node.op, self.value(node.left), self.value(node.right))
            case ast.Compare() if len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
                right = node.comparators[0]
                if isinstance(right, (ast.List, ast.Tuple)):
                    listed = [self.value(e) for e in right.elts]
                    return UNKNOWN if UNKNOWN in listed else _apply(node.ops[0], self.value(node.left), listed)
                if isinstance(node.left, ast.Constant) and dotted(right) == "os.environ":
                    return False if node.left.value in _RANKS | _WORLDS and isinstance(node.ops[0], ast.In) else UNKNOWN
                return _apply(node.ops[0], self.value(node.left), self.value(right))
        return UNKNOWN

    def _both(self, node: ast.BoolOp) -> Any:
        decisive = isinstance(node.op, ast.Or)
        values = [self.value(v) for v in node.values]
        if any(v is not UNKNOWN and bool(v) is decisive for v in values):
            return decisive
        return UNKNOWN if UNKNOWN in values else not decisive


def _variable(node: ast.AST) -> Any:
    if not isinstance(node, ast.Constant):
        return UNKNOWN
    return 0 if node.value in _RANKS else 1 if node.value in _WORLDS else UNKNOWN


def _apply(op: ast.AST, a: Any, b: Any) -> Any:
    if a is UNKNOWN or b is UNKNOWN:
        return UNKNOWN
    try:
        return _OPERATORS[type(op)](a, b)
    except (TypeError, ZeroDivisionError, ValueError):
        return UNKNOWN
