"""What an expression is to a rank, by torch's names for what mixes rows and what does not."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from .along import number
from .calls import Calls, joined, product
from .library import ALIKE, PASSING
from .tree import dotted, tail
from .values import (
    ALL_ROWS,
    COLS,
    COUNT,
    PACKED,
    SAME,
    SHAPE,
    SORTED,
    Kind,
    Value,
    add,
    divide,
    join,
    multiply,
    other,
)  # fmt: skip

_SUMMING = (ast.BinOp, ast.UnaryOp, ast.Call)


class Expressions(Calls):
    """Works out the kind of expressions; Flow adds the statements."""

    def bind(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        """Assign a value to a target."""
        if isinstance(target, (ast.Tuple, ast.List)):
            if value.reason == SHAPE and value.kind is Kind.ROWS:
                value = replace(value, items=(COUNT, *(SAME for _ in target.elts[1:])))
            items = (
                value.items
                if len(value.items) == len(target.elts)
                else (Value(value.kind, value.reason),) * len(target.elts)
            )
            for inner, item in zip(target.elts, items, strict=True):
                self.bind(inner, item, env)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        name = dotted(target)
        if name:
            env[name] = value
            self.kinds[target] = value
        elif isinstance(target, ast.Subscript) and dotted(target.value) and value.of_rows:
            name = dotted(target.value)
            env[name] = join(env.get(name, SAME), value)

    def value(self, node: ast.expr | None, env: dict[str, Value]) -> Value:
        """Work out an expression."""
        if node is None:
            return SAME
        found = self._value(node, env)
        if found == SAME and not found.items and found.over is None and isinstance(node, _SUMMING):
            found = self._summed(node)
        if found.of_rows or found.over is not None or node not in self.kinds:
            self.kinds[node] = found
        return found

    def _summed(self, node: ast.expr) -> Value:
        """Tell whether something that is alike everywhere is still a sum over all rows."""
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return SAME
        if isinstance(node, ast.Call) and tail(node) not in PASSING:
            return SAME
        loops = (self.kind(child).over for child in ast.iter_child_nodes(node))
        return Value(Kind.SAME, over=next((loop for loop in loops if loop is not None), None))

    def note_division(self, node: ast.AST, sum_: Value, divisor: ast.expr) -> None:
        """Keep by what a sum over the rows of a loop is divided."""
        loop = sum_.over or (self._loops[-1] if self._loops and sum_.kind in (Kind.SUM, Kind.COUNT) else None)
        if loop is not None:
            self.divided[node] = divisor, loop

    def _value(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return SAME
            case ast.Name():
                return env[node.id] if node.id in env else self.globals.get(node.id, SAME)
            case ast.Attribute():
                return self._attribute(node, env)
            case ast.Call():
                return self._call(node, env)
            case ast.Subscript():
                return self._subscript(node, env)
            case ast.BinOp():
                return self._operation(node, env)
            case ast.UnaryOp():
                return self.value(node.operand, env)
            case ast.Compare():
                return self._combined([node.left, *node.comparators], env)
            case ast.BoolOp():
                return self._combined(node.values, env)
            case ast.IfExp():
                self.value(node.test, env)
                return join(self.value(node.body, env), self.value(node.orelse, env))
            case ast.Tuple():
                items = tuple(self.value(e, env) for e in node.elts)
                return Value(joined(items).kind, joined(items).reason, items=items)
            case ast.List() | ast.Set():
                found = joined([self.value(e, env) for e in node.elts])
                return Value(found.kind, found.reason, listed=bool(node.elts))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, env)
            case ast.Dict():
                return joined([self.value(v, env) for v in node.values])
            case ast.JoinedStr():
                for part in node.values:
                    self.value(part, env)
                return SAME
            case ast.FormattedValue():
                self.value(node.value, env)
                return SAME
            case ast.Starred() | ast.Await():
                return self.value(node.value, env)
            case ast.NamedExpr():
                found = self.value(node.value, env)
                self.bind(node.target, found, env)
                return found
        return SAME

    def _attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        name = dotted(node)
        if name in env:
            return env[name]
        inner = self.value(node.value, env)
        if node.attr in ALIKE:
            return SAME
        if node.attr == "shape" and inner.kind in (Kind.ROWS, Kind.COLS):
            return Value(inner.kind, SHAPE)
        if node.attr in ("T", "mT") and inner.kind is Kind.ROWS:
            return COLS if node.attr == "T" else inner
        return Value(inner.kind, inner.reason)

    def _subscript(self, node: ast.Subscript, env: dict[str, Value]) -> Value:
        shape = node.value
        sized = (isinstance(shape, ast.Attribute) and shape.attr == "shape") or (
            isinstance(shape, ast.Call) and tail(shape) == "size" and not shape.args
        )
        found = self.value(shape, env)
        self.value(node.slice, env) if not isinstance(node.slice, ast.Slice) else None
        if (sized or found.reason == SHAPE) and found.kind is Kind.ROWS:
            if isinstance(node.slice, ast.Slice):
                return SAME if number(node.slice.lower) else found
            return COUNT if number(node.slice) == 0 else SAME
        index = number(node.slice)
        if found.items and isinstance(index, int) and -len(found.items) <= index < len(found.items):
            return found.items[index]
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if isinstance(first, ast.Constant) and first.value is None and found.kind is Kind.ROWS:
            return COLS
        some = isinstance(first, ast.Slice) and (first.lower is not None or first.upper is not None)
        if found.kind is Kind.ROWS and (self.kind(first).reason == ALL_ROWS or (found.reason == SORTED and some)):
            return other(ALL_ROWS)
        if found.kind is Kind.ROWS and _picks(first) and self.kind(first).kind is Kind.ROWS:
            return Value(Kind.ROWS, PACKED)
        return Value(found.kind, found.reason, listed=found.listed and isinstance(node.slice, ast.Slice))

    def _operation(self, node: ast.BinOp, env: dict[str, Value]) -> Value:
        a, b = self.value(node.left, env), self.value(node.right, env)
        match node.op:
            case ast.Add() | ast.Sub():
                zero = any(number(side) == 0 for side in (node.left, node.right))
                return add(a, b, zero)
            case ast.Mult():
                return multiply(a, b)
            case ast.Div():
                self.note_division(node, a, node.right)
                return divide(a, b)
            case ast.MatMult():
                return product(a, b)
            case ast.Mod() if isinstance(node.left, ast.Constant):
                return SAME
        found = join(a, b)
        return found if found.kind in (Kind.SAME, Kind.ROWS, Kind.COLS, Kind.OTHER) else other("is not linear")

    def _combined(self, nodes: list[ast.expr], env: dict[str, Value]) -> Value:
        found = joined([self.value(n, env) for n in nodes])
        return found if found.kind in (Kind.SAME, Kind.ROWS, Kind.COLS) else other("decides by what a rank sees")

    def _comprehension(self, node: Any, env: dict[str, Value]) -> Value:
        inner = dict(env)
        listed = False
        for clause in node.generators:
            iterated = self.value(clause.iter, inner)
            listed = listed or iterated.listed
            self.bind(clause.target, Value(iterated.kind, iterated.reason), inner)
        if isinstance(node, ast.DictComp):
            return self.value(node.value, inner)
        found = self.value(node.elt, inner)
        return Value(found.kind, found.reason, listed=listed or found.kind not in (Kind.ROWS, Kind.COLS))


def _picks(index: ast.expr) -> bool:
    """Tell whether an index is a mask, so that nobody knows how many rows it leaves."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    return isinstance(index, (ast.Compare, ast.BoolOp)) or "mask" in dotted(index).lower()
