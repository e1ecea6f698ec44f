"""What an expression that depends on ranks alone is worth on one process."""

from __future__ import annotations

import ast
import operator
from abc import abstractmethod
from typing import Any

from .bindings import Bindings
from .tree import dotted, tail

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
    "ddp_world_size": 1,
    **dict.fromkeys(("master_process", "is_main_process", "is_local_main_process"), True),
}
_STATES = {"accelerator", "state", "partial_state", "distributed_state"}  # whose num_processes is that of the job
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b, ast.Is: operator.eq, ast.IsNot: operator.ne,
}  # fmt: skip


class Evaluation:
    """Values of expressions, by the names that hold ranks."""

    bindings: Bindings
    accelerators: set[str]
    names: dict[str, Any]

    @abstractmethod
    def _name(self, node: ast.AST) -> str: ...

    def is_ranked(self, node: ast.AST) -> bool:
        """Tell whether an expression mentions a rank."""
        return any(self._source(n) is not UNKNOWN for n in ast.walk(node))

    def counts(self, node: ast.AST) -> bool:
        """Tell whether an expression mentions the number of processes."""
        return any(type(found := self._source(n)) is int and found == 1 for n in ast.walk(node))

    def _source(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = dotted(node)
            if (full := self._name(node)) in self.names:
                return self.names[full]
            if not isinstance(node, ast.Attribute) or not name:
                return UNKNOWN
            if node.attr == "num_processes":
                return 1 if self._is_state(node.value) else UNKNOWN
            return _NAMES.get(node.attr, UNKNOWN)
        if isinstance(node, ast.Call):
            if tail(node) in _CALLS and not node.args:
                return _CALLS[tail(node)]
            if dotted(node.func) in ("os.environ.get", "os.getenv") and node.args:
                found = _variable(node.args[0])
                default = self.value(node.args[1]) if len(node.args) > 1 and found is not UNKNOWN else UNKNOWN
                return found if default is UNKNOWN else default
        if isinstance(node, ast.Subscript) and dotted(node.value) == "os.environ" and isinstance(node.ctx, ast.Load):
            return _variable(node.slice)
        return UNKNOWN

    def _is_state(self, owner: ast.expr) -> bool:
        return (
            tail(owner) in _STATES
            or dotted(owner) in self.accelerators
            or any(tail(c) in ("Accelerator", "PartialState", "AcceleratorState") for c in self.bindings.origins(owner))
        )

    def value(self, node: ast.AST) -> Any:
        """Work out an expression, if the rank is all that it depends on."""
        source = self._source(node)
        if source is not UNKNOWN:
            return source
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
