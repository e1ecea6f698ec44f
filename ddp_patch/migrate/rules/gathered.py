"""What a loop gathers over its batches is that of all ranks once the loop is over."""

from __future__ import annotations

import ast

from ..flow import Accumulation
from ..gathering import begins_here, is_meter, is_of_around, is_updated, stored_in
from ..plan import Plan
from ..tree import dotted, tail
from ..undealt import fed
from ..values import Kind

LOCAL = "# of rank 0's rows; all rows are counted after the loop"


def apply(plan: Plan) -> set[ast.stmt]:
    """Reduce what loops gather; gives the statements that have to reduce what they gather at once."""
    early: set[ast.stmt] = set()
    loops: dict[ast.For, list[Accumulation]] = {}
    for found in plan.flow.accumulated.values():
        loops.setdefault(found.loop, []).append(found)
    for loop, gathered in loops.items():
        _Loop(plan, loop, early).reduce(gathered)
    _repeated(plan)
    for loop in plan.flow.loader_loops:
        if plan.trains(loop):
            for node in ast.walk(loop):
                if isinstance(node, ast.Expr) and (owner := fed(plan.flow, node, loop)):
                    plan.script.todo(node, f"{owner} is fed with this rank's rows: see whether it has to know all")
    return early


class _Loop:
    """What one loop over a loader gathers."""

    def __init__(self, plan: Plan, loop: ast.For, early: set[ast.stmt]) -> None:
        self.plan, self.script, self.loop, self.early = plan, plan.script, loop, early
        self.trains = plan.trains(loop)
        self.fed = [loader.trains for loader in plan.feeding(loop)] or [self.trains]
        self.inside = set(ast.walk(loop))

    def reduce(self, gathered: list[Accumulation]) -> None:
        sums: list[str] = []
        means: list[str] = []
        rows: list[str] = []
        either: list[str] = []
        meters: list[str] = []
        for found in gathered:
            value = found.value
            if is_updated(found) and is_of_around(self.script, self.plan.bindings, found):
                if self.trains and is_meter(self.plan.bindings, found):
                    self.early.update(found.statements)
                else:
                    reason = f"{found.name} is of the function around: reduce it over the ranks"
                    self.script.todo(found.statements[0], reason)
                continue
            if is_meter(self.plan.bindings, found):
                if self.trains and self._is_read_inside(found):
                    self.early.update(found.statements)
                elif self.is_read_after(found.name):
                    meters.append(found.name)
                    self._mark_local(found)
                continue
            if is_updated(found):
                self._foreign(found)
                continue
            if value.kind is Kind.OTHER and value.reason not in self.plan.reasons:
                self.script.todo(found.statements[0], f"{found.name} {value.reason}: work it out of all ranks' rows")
                continue
            if not self.is_read_after(found.name):
                continue
            if not begins_here(self.script, self.loop, found.name):
                if self.trains and value.kind is not Kind.ROWS:
                    self.early.update(found.statements)
                else:
                    self.script.todo(self.loop, f"{found.name} goes on from an earlier loop: reduce what is new in it")
                continue
            if value.kind in (Kind.ROWS, Kind.COLS) or (value.listed and not self.trains):
                if value.listed:
                    rows.append(found.name)
                else:
                    self.script.todo(found.statements[0], f"{found.name} holds this rank's rows: gather them")
            elif value.kind in (Kind.SUM, Kind.COUNT):
                sums.append(found.name)
            elif self.trains or all(self.fed):
                means.append(found.name)
            elif any(self.fed):
                either.append(found.name)
            else:
                sums.append(found.name)  # a rank's batches are whole, so their means are those of one process
        if either:
            names, over = ", ".join(either), self.script.code(self.plan.flow.loader_loops[self.loop])
            self.script.after(self.outside(), f"{names} = {self.plan.use('all_batches')}({over}, {names})")
        tests = {name: self._condition(name) for name in (*sums, *means, *rows)}
        for test in dict.fromkeys([*filter(None, tests.values()), ""]):
            of = [[n for n in names if tests[n] == test] for names in (sums, means, rows)]
            self._write(of[0], of[1], of[2], [] if test else meters, test)

    def _condition(self, name: str) -> str:
        """Find the test under which alone a name is set before the loop."""
        block = self.script.block(self.loop)
        stored = [s for s in block[: block.index(self.loop)] if name in stored_in(s)]
        if not stored or not all(isinstance(s, ast.If) and not s.orelse for s in stored):
            return ""
        return self.script.code(stored[0].test)  # type: ignore[attr-defined]

    def _write(self, sums: list[str], means: list[str], rows: list[str], meters: list[str], test: str = "") -> None:
        lines = []
        for names, helper in ((sums, "all_sum"), (means, "all_mean")):
            if names:
                lines.append(f"{', '.join(names)} = {self.plan.use(helper)}({', '.join(names)})")
        if rows:
            left = ", ".join(rows) if len(rows) > 1 else f"({rows[0]},)"
            lines.append(f"{left} = {self.plan.use('all_rows')}({', '.join(rows)})")
        if meters:
            lines.append(f"{self.plan.use('reduce_meters')}({', '.join(meters)})")
        if lines and test:
            lines = [f"if {test}:", *(self.script.part(self.loop).unit + line for line in lines)]
        if lines:
            self.script.after(self.outside(), *lines)

    def outside(self) -> ast.stmt:
        """Reduce after the ``with torch.no_grad():`` that holds nothing but the loop."""
        statement: ast.stmt = self.loop
        while isinstance(parent := self.script.parents[statement], ast.With) and parent.body[-1] is statement:
            statement = parent
        return statement

    def _foreign(self, found: Accumulation) -> None:
        """Look at something of another file that is fed by ``update``."""
        first = found.statements[0]
        assert isinstance(first, ast.Expr)
        assert isinstance(first.value, ast.Call)
        owner = first.value.func.value  # type: ignore[attr-defined]
        words = {tail(c) for c in self.plan.bindings.origins(owner)}
        if any("Meter" in word for word in words):
            self.script.todo(first, f"{found.name} is a meter of another file: reduce its sum and count over the ranks")
        elif "tqdm" not in words and "torchmetrics" not in self.script.text:
            self.script.todo(first, f"{found.name} is fed with this rank's rows: work it out of all ranks' rows")

    def _is_read_inside(self, found: Accumulation) -> bool:
        updates = {n for s in found.statements for n in ast.walk(s)}
        reads = {dotted(n) for n in self.inside - updates if isinstance(n, (ast.Name, ast.Attribute))}
        shown = {
            dotted(c.func.value)
            for c in self.inside
            if isinstance(c, ast.Call)
            and isinstance(c.func, ast.Attribute)
            and c.func.attr in ("display", "log", "print")
        }
        holders = {
            dotted(n.targets[0])
            for n in self.script.all(ast.Assign)
            if any(dotted(m) == found.name for m in ast.walk(n.value) if isinstance(m, (ast.Name, ast.Attribute)))
        }
        return found.name in reads or bool(shown & holders)

    def _mark_local(self, found: Accumulation) -> None:
        """Say of what is shown during an evaluation that it is of one rank's rows."""
        for node in self.script.all(ast.Expr):
            shown = node in self.inside and node not in found.statements
            if shown and found.name in {dotted(n) for n in ast.walk(node)}:
                self.script.note(node, LOCAL)

    def is_read_after(self, name: str) -> bool:
        function = self.script.function(self.loop)
        for node in self.script.all(ast.Name, ast.Attribute):
            if dotted(node) != name or node in self.inside or not isinstance(node.ctx, ast.Load):
                continue
            if name.startswith("self.") or self.script.function(node) is function or function is None:
                return True
        return name in self.plan.flow.globals and function is not None and self._is_global(name, function)

    def _is_global(self, name: str, function: ast.AST) -> bool:
        return any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(function))


def _repeated(plan: Plan) -> None:
    """Let ranks that evaluated the same go on with the same numbers: noise and BatchNorm on CPUs differ."""
    loops: dict[ast.For, list[str]] = {}
    for loop, name in plan.flow.repeated:
        loops.setdefault(loop, []).append(name)
    for loop, names in loops.items():
        gathered = _Loop(plan, loop, set())
        kept = [n for n in names if gathered.is_read_after(n) and begins_here(plan.script, loop, n)]
        if kept:
            listed = ", ".join(kept)
            plan.script.after(gathered.outside(), f"{listed} = {plan.use('all_mean')}({listed})")
