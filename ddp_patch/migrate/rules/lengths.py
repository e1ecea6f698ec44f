"""Lengths: a rank's share of an evaluation is shorter, and training takes some rows twice."""

from __future__ import annotations

import ast

from ..gathering import is_after, number_of_batch
from ..plan import Plan
from ..tree import dotted, tail

_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)


def apply(plan: Plan) -> None:
    """Write lengths that are those of all ranks."""
    _Rows(plan).rewrite()
    _batches(plan)


class _Rows:
    """Where a sum over rows is set against how many there are."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.script, self.flow = plan, plan.script, plan.flow
        self.written: dict[ast.AST, str] = {}

    def rewrite(self) -> None:
        for node, (divisor, loop) in self.flow.divided.items():
            if self.plan.pads(loop):
                self._divisor(node, divisor, loop)
        for statement in self.script.all(*_SIMPLE):
            read = [self.flow.kind(n).over for n in ast.walk(statement) if isinstance(n, ast.expr)]
            for over in [over for over in read if over is not None and self.plan.pads(over)][:1]:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Call) and node not in self.written:
                        self._length(node, over)
        self.script.substitute(self.written)

    def _divisor(self, node: ast.AST, divisor: ast.expr, loop: ast.For) -> None:
        """See to it that a sum is divided by as many rows as are in it."""
        inside = [n for n in ast.walk(divisor) if isinstance(n, ast.expr)]
        if any(self.flow.kind(n).of_rows or self.flow.kind(n).over is not None for n in inside):
            return  # counted, as the sum is
        if any(isinstance(n, ast.Call) and self._length(n, loop) for n in inside):
            return
        for name in inside:
            made = self.plan.bindings.origins(name) if isinstance(name, (ast.Name, ast.Attribute)) else []
            for call in made:
                if (rows := self._rows(call, loop)) is not None:
                    self.written[name] = rows
                    return
        if self.flow.kind(node).over is None and self._is_number_of_rows(divisor, loop):
            top = node.left if isinstance(node, ast.BinOp) else node.target  # type: ignore[attr-defined]
            self.script.todo(
                node,
                f"{self.script.code(top)} has the rows that training takes twice, so that every rank has as many: "
                "divide by the number of all",
            )

    def _is_number_of_rows(self, divisor: ast.expr, loop: ast.For) -> bool:
        if self.script.function(divisor) is not self.script.function(loop) or divisor in set(ast.walk(loop)):
            return False
        if isinstance(divisor, ast.Constant):
            return isinstance(divisor.value, (int, float)) and divisor.value > 100
        return isinstance(divisor, (ast.Name, ast.Attribute)) and not self._counts_batches(divisor, loop)

    def _counts_batches(self, name: ast.expr, loop: ast.For) -> bool:
        inside = {dotted(n.target) for n in ast.walk(loop) if isinstance(n, ast.AugAssign)}
        inside |= {dotted(n) for n in ast.walk(loop.target)}
        return dotted(name) in inside or any(tail(c) == "len" for c in self.plan.bindings.origins(name))

    def _length(self, call: ast.Call, loop: ast.For) -> bool:
        rows = self._rows(call, loop)
        if rows is not None:
            self.written[call] = rows
        return rows is not None

    def _rows(self, call: ast.Call, loop: ast.For) -> str | None:
        """Write how many rows all ranks took, for a dataset's length."""
        if tail(call) != "len" or len(call.args) != 1:
            return None
        of, code = call.args[0], self.script.code
        if isinstance(of, ast.Attribute) and of.attr in ("dataset", "sampler"):
            calls = self.flow.loader_calls(of.value)
            is_padded = any(loader.pads for loader in self.plan.loaders.values() if loader.node in calls)
            over = self.flow.loader_loops[loop]
            if is_padded or (not calls and dotted(of.value) == dotted(over)):
                return f"{self.plan.use('rows_of')}({code(of.value)})"
            return None
        for loader in self.plan.feeding(loop):
            data = loader.call.args[0] if loader.call.args and not loader.foreign else None
            if loader.pads and data is not None and dotted(of) and dotted(data):
                same = self.plan.bindings.group(of)
                if same is not None and self.plan.bindings.holds(data, same):
                    over = self.flow.loader_loops[loop]
                    near = self.script.function(call) is self.script.function(loop) and dotted(over)
                    name = code(over) if near else loader.name
                    return f"{self.plan.use('rows_of')}({name})" if name else None
        return None


def _batches(plan: Plan) -> None:
    """A rank's share of an evaluation has fewer batches than one process has."""
    dealt = {call for call, loader in plan.loaders.items() if not loader.trains and not loader.whole}
    written: dict[ast.AST, str] = {}
    for call in plan.script.calls():
        measured = call.args[0] if tail(call) == "len" and len(call.args) == 1 else None
        named = measured.value if isinstance(measured, ast.Subscript) else measured
        if measured is not None and dotted(named) and plan.flow.loader_calls(measured) & dealt:
            written[call] = f"{plan.use('batches_of')}({plan.script.code(call.args[0])})"
    for loop, over in plan.flow.loader_loops.items():
        number, start = number_of_batch(loop)
        if number and plan.flow.loader_calls(over) & dealt and dotted(over) and not plan.trains(loop):
            first = plan.script.code(start) if start is not None else "0"
            for node in plan.script.all(ast.Name):
                if node.id == number and is_after(plan.script, node, loop):
                    parent = plan.script.parents[node]
                    batches = f"{plan.use('batches_of')}({plan.script.code(over)})"
                    if first == "1":
                        written[node] = batches
                    elif first == "0" and isinstance(parent, ast.BinOp) and ast.unparse(parent) == f"{number} + 1":
                        written[parent] = batches
                    else:
                        written[node] = f"({batches} - 1)" if first == "0" else f"({batches} - 1 + {first})"
    plan.script.substitute(written)
