"""What a call gives, by what it is given."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from . import losses
from .along import einsum, mixed, mixes_rows, number
from .iterated import Iterated
from .library import LIBRARIES, LINEAR, MAKING, NO_LINE, PACKING, PASSING, SPLITTING
from .tree import Function, dotted, keyword, tail
from .values import (
    ALL_ROWS,
    COLS,
    COUNT,
    ELSEWHERE,
    IN_BATCH,
    MIXED,
    PACKED,
    ROWS,
    SAME,
    SHAPE,
    STACKED,
    TOKENS,
    Kind,
    Value,
    add,
    average,
    divide,
    join,
    multiply,
    other,
    total,
)  # fmt: skip

_BUILT_IN = {"max", "min", "all", "any"}  # of Python: they take no dimension
_SOFT = {"Softmax", "LogSoftmax", "Softmin"}


class Calls(Iterated):
    """Works out calls; Expressions adds the other expressions."""

    def value(self, node: ast.expr | None, env: dict[str, Value]) -> Value:
        """Work out an expression; Expressions does."""
        raise NotImplementedError

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        name = tail(node)
        if name == "len" and node.args and self.value(node.args[0], env).reason == SHAPE:
            return SAME
        values = [_of_size(self.value(a, env)) for a in node.args]
        named = {k.arg: _of_size(self.value(k.value, env)) for k in node.keywords}
        arguments = [*values, *named.values()]
        if isinstance(node.func, ast.Attribute):
            owner = _of_size(self.value(node.func.value, env))
            if owner.of_rows:
                return self._method(node, name, owner, values)
        elif not isinstance(node.func, ast.Name):
            self.value(node.func, env)
        if name in ("print", "str", "repr", "format"):
            return SAME  # a text: what stands in it is looked at by itself
        if name == "next" and node.args and (over := self.loader(node.args[0])) is not None:
            return SAME if self.is_whole(over) else ROWS
        if name in MAKING and self._is_of_a_batch(node, arguments):
            return ROWS
        if name in PACKING and arguments and arguments[0].kind is Kind.ROWS:
            return Value(Kind.ROWS, PACKED)
        if name in SPLITTING and arguments and arguments[0].kind is Kind.ROWS:
            return arguments[0]  # the others say how many
        if name == "stack" and joined(arguments).kind is Kind.ROWS:
            dim = number(keyword(node, "dim", 1) or keyword(node, "axis"))
            return Value(Kind.ROWS, "" if dim not in (None, 0) else STACKED)
        result = self._by_callee(node, env, values, named)
        if result is not None:
            return result
        worst = joined(arguments)
        if not worst.of_rows or worst.kind is Kind.OTHER:
            return worst if worst.kind is Kind.OTHER else SAME
        return self._library(node, name, values, worst)

    def _is_of_a_batch(self, node: ast.Call, arguments: list[Value]) -> bool:
        """Tell whether a tensor is made with a row for each of the batch: by its size, or by the loader's constant."""
        if any(value.kind is Kind.COUNT for value in arguments):
            return True
        inner = [e for a in node.args for e in (a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a])]
        return bool(self.sizes) and any(
            isinstance(e, (ast.Name, ast.Attribute)) and dotted(e) in self.sizes for e in inner
        )

    def _by_callee(self, node: ast.Call, env: Any, values: list[Value], named: dict[Any, Value]) -> Value | None:
        """Calls of losses, of the script's functions and modules, and of an optimizer's closure."""
        name = tail(node)
        rows = any(v.of_rows for v in (*values, *named.values()))
        if name == "step" and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in self.closures:
            closure, seen = self.closures[node.args[0].id]
            self.call_function(closure, dict(seen))
            return SAME  # what the closure returns is reduced
        if name in losses.FUNCTIONS and rows:
            return _worst(values) or losses.of_call(node)
        modules = [node.func] if isinstance(node.func, ast.Call) else self.bindings.origins(node.func)
        if rows and modules and all(tail(made) in losses.CLASSES for made in modules):
            return _worst(values) or joined(map(losses.of_call, modules))
        if rows and any(tail(made) in _SOFT and number(keyword(made, "dim", 0)) == 0 for made in modules):
            return other(ALL_ROWS)
        function: Function | None = self.bindings.callee(node)
        if self.bindings.class_called(node) is not None:
            return SAME  # an object
        if function is None:
            owner = self.bindings.class_made(node.func)
            function = (
                self.bindings.method(owner, "forward") or self.bindings.method(owner, "__call__") if owner else None
            )
        if isinstance(node.func, ast.Name) and node.func.id in self.closures and function is None:
            function = self.closures[node.func.id][0]
        if function is None:
            return None
        arguments = self.bindings.arguments(node, function)
        by_argument = dict(zip(node.args, values, strict=True)) | {k.value: named[k.arg] for k in node.keywords}
        inner = {name: by_argument.get(argument, SAME) for name, argument in arguments.items()}
        starred = next((by_argument[a] for a in node.args if isinstance(a, ast.Starred)), None)
        if starred is not None:
            inner = {a.arg: starred for a in function.args.args if a.arg != "self"} | inner
        return self.call_function(function, inner)

    def _method(self, node: ast.Call, name: str, owner: Value, values: list[Value]) -> Value:
        rows = owner.kind in (Kind.ROWS, Kind.COLS)
        if name in ("size", "shape"):
            if values:
                return COUNT if number(node.args[0]) == 0 else SAME
            return Value(owner.kind, SHAPE) if rows else SAME
        if name in ("numel", "nelement"):
            return COUNT
        if name in ("backward", "update", "step", "append", "extend", "dim", "get_device"):
            return SAME
        if name in ("mean", "sum"):
            return self._reduced(node, name, owner, node.args)
        if name in ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_") and values:
            function = {"a": add, "s": add, "m": multiply, "d": divide}[name[0]]
            return function(owner, values[0])
        if not rows:
            straight = name in LINEAR or owner.listed or owner.kind is Kind.OTHER
            return Value(owner.kind, owner.reason, owner.listed) if straight else other("is not linear")
        if name in ("t", "unsqueeze", "transpose", "permute", "view", "reshape") and owner.kind is Kind.ROWS:
            numbers = [number(a) for a in node.args]
            turned = name == "t" or (name == "unsqueeze" and numbers == [0]) or (name == "transpose" and 0 in numbers)
            flat = name in ("view", "reshape") and numbers[:1] == [1]
            if name == "permute" and numbers and numbers[0] != 0:
                return Value(Kind.ROWS, STACKED)
            return COLS if turned or flat else owner
        if name in ("mm", "matmul") and values:
            return product(owner, values[0])
        if mixes_rows(node, name, owner, True):
            return mixed(name)
        return join(owner, joined([v for v in values if v.kind in (Kind.ROWS, Kind.COLS, Kind.OTHER)]))

    def _reduced(self, node: ast.Call, name: str, owner: Value, dims: list[ast.expr]) -> Value:
        dim = keyword(node, "dim") or keyword(node, "axis") or (dims[0] if dims else None)
        whole = average(owner) if name == "mean" else total(owner)
        if dim is None or owner.kind not in (Kind.ROWS, Kind.COLS):
            return whole
        numbers = [number(e) for e in dim.elts] if isinstance(dim, (ast.Tuple, ast.List)) else [number(dim)]
        if 0 not in numbers:
            return owner
        return whole if name == "sum" else other("is a mean over the rows of a batch, kept apart by column")

    def _library(self, node: ast.Call, name: str, values: list[Value], worst: Value) -> Value:
        first = values[0] if values else worst
        if name == "len":
            return SAME if first.listed else COUNT
        if dotted(node.func) == "sum" and first.kind is Kind.ROWS and self._may_be_losses(node.args[0]):
            return first
        if name in ("mean", "sum", "fsum", "average"):
            return self._reduced(node, "sum" if "sum" in name else "mean", first, node.args[1:])
        if name in ("mm", "matmul") and len(values) == 2:
            return product(*values)
        if name == "einsum" and worst.of_rows and len(node.args) == len(values):
            return einsum(node, values) or other(IN_BATCH)
        named = isinstance(node.func, ast.Attribute) or name not in _BUILT_IN
        if named and first.kind in (Kind.ROWS, Kind.COLS) and mixes_rows(node, name, first, False):
            return mixed(name)
        if name == "cdist" and len(values) == 2 and all(v.kind is Kind.ROWS for v in values[:2]):
            return other(IN_BATCH)
        if Kind.COLS in (kinds := {v.kind for v in values}) and Kind.ROWS in kinds:
            return other(IN_BATCH)
        if worst.kind not in (Kind.ROWS, Kind.COLS):
            if name in PASSING or name in ("stack", "cat", "list", "tuple", "dict", "str", "print", "format"):
                return worst if name not in ("print", "str", "format") else SAME
            return other(f"is made by {name}(), which is not linear") if name in NO_LINE else self._unknown(node, worst)
        if name == "dict":
            return SAME
        root = dotted(node.func).split(".")[0]
        return worst if root in LIBRARIES or root == "self" else self._unknown(node, worst)

    def _may_be_losses(self, summed: ast.expr) -> bool:
        """Tell whether Python's ``sum`` may get losses that another file put together, where it else gets rows."""
        each = summed.generators[0].iter if isinstance(summed, (ast.GeneratorExp, ast.ListComp)) else summed
        each = each.value if isinstance(each, ast.Subscript) else each
        if tail(each) in ("values", "items", "keys") and isinstance(each, ast.Call):
            return True
        return any(
            self.bindings.callee(made) is None
            and dotted(made.func).split(".")[0] not in LIBRARIES | set(dir(builtins))
            and not (isinstance(made.func, ast.Attribute) and self.kind(made.func.value).of_rows)
            for made in ([each] if isinstance(each, ast.Call) else self.bindings.origins(each))
        )

    def _unknown(self, node: ast.Call, worst: Value) -> Value:
        """Tell what a function gives that is not in this file: rows, unless its name says it sums up."""
        name = tail(node).lower()
        if self.bindings.origins(node.func) or worst.kind not in (Kind.ROWS, Kind.COLS):
            made = "".join(map(tail, self.bindings.origins(node.func))).lower().replace("critic", "")
            summing = any(word in made for word in ("loss", "crit"))
        else:
            summing = any(word in name for word in ("loss", "crit", "acc", "score", "metric", "iou", "auc", "error"))
        if summing:
            return other(f"is worked out by {tail(node)}(), {ELSEWHERE}")
        return worst if worst.kind in (Kind.ROWS, Kind.COLS) else other(f"is made by {tail(node)}(), {ELSEWHERE}")


def _of_size(value: Value) -> Value:
    """Take what a shape makes for rows: as many of them."""
    return Value(value.kind) if value.reason == SHAPE else value


def _worst(values: list[Value]) -> Value | None:
    """Find what no loss makes a mean over samples of."""
    if any(v.kind in (Kind.MEAN, Kind.SUM) for v in values):
        return other(MIXED)
    if any(v.reason == PACKED and v.kind is Kind.ROWS for v in values):
        return other(TOKENS)
    return next((v for v in values if v.kind is Kind.OTHER), None)


def product(a: Value, b: Value) -> Value:
    """Tell what a product of matrices is."""
    kinds = {a.kind, b.kind}
    if Kind.COLS in kinds and Kind.ROWS in kinds:
        return other(IN_BATCH)
    return joined([a, b])


def joined(values: Any) -> Value:
    """Tell what several values are together."""
    found = SAME
    for value in values:
        found = join(found, Value(value.kind, value.reason, value.listed))
    return found
