"""Calls that mix the rows of a batch: what one process has of them, a rank has of the rows of all ranks only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection

from .bindings import Bindings
from .expressions import Expressions
from .script import Script
from .tree import dotted, tail
from .values import ALL_ROWS, ELSEWHERE, IN_BATCH, MIXED, SORTED, WEIGHTED, WHOLE, Kind, Value


class Mixing(Expressions):
    """Finds losses and metrics that are to get all rows; Flow adds the statements."""

    def __init__(
        self,
        script: Script,
        bindings: Bindings,
        trains: Callable[[ast.AST], bool],
        whole: Collection[ast.expr] = (),  # loaders that every rank takes all of
    ) -> None:
        super().__init__(script, bindings, whole)
        self._trains = trains
        self._inside = 0  # of so many loops over the rows of a batch
        self.whole_calls: dict[ast.Call, list[ast.expr]] = {}  # what of their arguments is gathered from all ranks
        asked = [c.func.value for c in script.calls() if isinstance(c.func, ast.Attribute) and tail(c) == "parameters"]
        self._trained = [group for owner in asked if dotted(owner) != "self" and (group := bindings.group(owner))]

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        found = super()._call(node, env)
        if self._trains_on_rows():
            if self._is_of_batch(node, found):
                self.whole_calls[node] = [a for a in _arguments(node) if self.kind(a).of_rows]
                return Value(Kind.SAME, WHOLE)
            self.whole_calls.pop(node, None)
        return found

    def _trains_on_rows(self) -> bool:
        """Tell whether this is a step of a training in which all ranks take part."""
        return bool(self._loops) and not self._inside and self._trains(self._loops[-1])

    def _is_of_batch(self, node: ast.Call, found: Value) -> bool:
        """Tell whether a call gives what one process has only if it gets the rows of all ranks."""
        mixes = found.reason in (IN_BATCH, ALL_ROWS, MIXED, WEIGHTED) or (
            found.reason.startswith("is worked out by") and found.reason.endswith(ELSEWHERE)
        )
        keeps = isinstance(self.script.parents[node], ast.Expr) and self.bindings.is_local(node.func)
        row_values = [value for a in _arguments(node) if (value := self.kind(a)).of_rows]
        if isinstance(node.func, ast.Attribute) and self._is_trained(node.func.value):
            return False  # a method of a model: it goes past DDP's forward
        made = "".join(map(tail, self.bindings.origins(node.func))).lower()
        if self._is_trained(node.func) and "loss" not in made and not found.reason.endswith(ELSEWHERE):
            return False  # all ranks would compute all of a model, where one of its losses is little
        plain = all(v.kind is Kind.ROWS and v.reason in ("", SORTED) for v in row_values)
        if not (row_values and plain and ((found.kind is Kind.OTHER and mixes) or keeps)):
            return False
        loop = self._loops[-1]
        inside = (n for n in self.script.above(node) if isinstance(n, (ast.If, ast.While, ast.IfExp)))
        return not any(self.kind(n.test).of_rows for n in inside if loop in self.script.above(n))

    def _is_trained(self, node: ast.expr) -> bool:
        return any(self.bindings.holds(node, group) for group in self._trained)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]
