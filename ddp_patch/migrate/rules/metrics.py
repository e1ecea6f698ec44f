"""What the script reads, prints or decides by is that of all ranks: reduced after the loop, or where it is read."""

from __future__ import annotations

import ast

from ..flow import Accumulation
from ..plan import Plan
from ..script import dotted, tail
from ..values import Kind

_LOGGING = {
    *(
        "print",
        "write",
        "writerow",
        "set_postfix",
        "set_postfix_str",
        "set_description",
        "info",
        "debug",
        "warning",
        "log",
    ),
    *("add_scalar", "add_scalars", "log_metric", "log_metrics", "pprint", "tqdm_write", "append", "put"),
}
_SILENT = {  # calls for their effect on tensors, gradients and lists
    *(
        "backward",
        "step",
        "update",
        "extend",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "copy_",
        "fill_",
        "zero_",
        "clamp_",
        "data",
    ),
    *(
        "clip_grad_norm_",
        "clip_grad_value_",
        "manual_seed",
        "insert",
        "push",
        "scale",
        "unscale_",
        "detach_",
        "retain_grad",
    ),
}
_REDUCED = {Kind.MEAN: "all_mean", Kind.SUM: "all_sum", Kind.COUNT: "all_sum"}
_LOCAL = "# of rank 0's rows; all rows are counted after the loop"


def apply(plan: Plan) -> None:
    """Reduce what is gathered over the batches of a loop, then what is read inside of it."""
    early: set[ast.stmt] = set()
    loops: dict[ast.For, list[Accumulation]] = {}
    for found in plan.flow.accumulated.values():
        loops.setdefault(found.loop, []).append(found)
    for loop, gathered in loops.items():
        _Loop(plan, loop, early).reduce(gathered)
    _Reads(plan, early).rewrite()


class _Loop:
    """What one loop over a loader gathers."""

    def __init__(self, plan: Plan, loop: ast.For, early: set[ast.stmt]) -> None:
        self.plan, self.script, self.loop, self.early = plan, plan.script, loop, early
        self.trains = plan.trains(loop)
        self.inside = set(ast.walk(loop))

    def reduce(self, gathered: list[Accumulation]) -> None:
        sums: list[str] = []
        means: list[str] = []
        rows: list[str] = []
        meters: list[str] = []
        for found in gathered:
            value = found.value
            if self._is_meter(found):
                if self.trains and self._is_read_inside(found):
                    self.early.update(found.statements)
                elif self._is_read_after(found.name):
                    meters.append(found.name)
                    self._mark_local(found)
                continue
            if (
                all(tail(s.value) == "update" for s in found.statements if isinstance(s, ast.Expr))
                and isinstance(found.statements[0], ast.Expr)
                and tail(found.statements[0].value) == "update"
            ):
                continue
            if value.kind is Kind.OTHER and value.reason not in self.plan.reasons:
                self.script.todo(found.statements[0], f"{found.name} {value.reason}: work it out of all ranks' rows")
                continue
            if not self._is_read_after(found.name):
                continue
            if not self._begins_here(found.name):
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
            elif self.trains:
                means.append(found.name)
            else:
                self._mean_of_uneven(found.name)
        self._write(sums, means, rows, meters)

    def _write(self, sums: list[str], means: list[str], rows: list[str], meters: list[str]) -> None:
        lines = []
        for names, helper in ((sums, "all_sum"), (means, "all_mean")):
            if names:
                lines.append(f"{', '.join(names)} = {self.plan.use(helper)}({', '.join(names)})")
        if rows:
            left = ", ".join(rows) if len(rows) > 1 else f"({rows[0]},)"
            lines.append(f"{left} = {self.plan.use('all_rows')}({', '.join(rows)})")
        if meters:
            lines.append(f"{self.plan.use('reduce_meters')}({', '.join(meters)})")
        if lines:
            self.script.after(self._outside(), *lines)

    def _outside(self) -> ast.stmt:
        """Reduce after the ``with torch.no_grad():`` that holds nothing but the loop."""
        statement: ast.stmt = self.loop
        while isinstance(parent := self.script.parents[statement], ast.With) and parent.body[-1] is statement:
            statement = parent
        return statement

    def _mean_of_uneven(self, name: str) -> None:
        """Ranks may evaluate one batch more or less, so means are summed, and divided by the batches of all."""
        helper = self.plan.use("all_sum")
        batches = "batches" if "batches" not in self._names() else "all_batches"
        divisors = [n for n in self.script.all(ast.BinOp, ast.AugAssign) if self._divides(n, name)]
        if divisors and not self.script.is_replaced(divisors[0]):
            divisor = [n.right if isinstance(n, ast.BinOp) else n.value for n in divisors]
            code = self.script.code(divisor[0])
            self.script.after(self._outside(), f"{name}, {batches} = {helper}({name}, {code})")
            for node in divisor:
                self.script.replace(node, batches)
            return
        loader = self.script.code(self.plan.flow.loader_loops[self.loop])
        self.script.after(
            self._outside(),
            f"{name}, {batches} = {helper}({name}, len({loader}))",
            f"{name} *= len({loader}) / {batches}  # as if one process had summed it up",
        )

    def _divides(self, node: ast.AST, name: str) -> bool:
        if self.script.function(node) is not self.script.function(self.loop) or node in self.inside:
            return False
        if node.lineno < self.loop.lineno or not isinstance(node.op, ast.Div):  # type: ignore[attr-defined]
            return False
        top, bottom = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)  # type: ignore[attr-defined]
        if any(isinstance(n, ast.JoinedStr) for n in self.script.above(node)):
            return False
        counts = {f"len({self.script.code(self.plan.flow.loader_loops[self.loop])})"}
        if isinstance(self.loop.target, ast.Tuple) and isinstance(self.loop.target.elts[0], ast.Name):
            counts |= {f"{self.loop.target.elts[0].id} + 1"}
        return dotted(top) == name and ast.unparse(bottom) in counts

    def _names(self) -> set[str]:
        return {n.id for n in self.script.all(ast.Name)}

    def _is_meter(self, found: Accumulation) -> bool:
        first = found.statements[0]
        if not (isinstance(first, ast.Expr) and tail(first.value) == "update"):
            return False
        call = first.value
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        made = self.plan.bindings.class_made(call.func.value)
        if made is not None:
            names = {dotted(n) for n in ast.walk(made) if isinstance(n, ast.Attribute)}
            return {"self.sum", "self.count", "self.avg"} <= names
        words = {tail(c) for c in self.plan.bindings.origins(call.func.value)}
        if any("Meter" in word for word in words):
            self.script.todo(first, f"{found.name} is a meter of another file: reduce its sum and count over the ranks")
        return False

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
                self.script.note(node, _LOCAL)

    def _is_read_after(self, name: str) -> bool:
        function = self.script.function(self.loop)
        for node in self.script.all(ast.Name, ast.Attribute):
            if dotted(node) != name or node in self.inside or not isinstance(node.ctx, ast.Load):
                continue
            if name.startswith("self.") or self.script.function(node) is function or function is None:
                return True
        return name in self.plan.flow.globals and function is not None and self._is_global(name, function)

    def _is_global(self, name: str, function: ast.AST) -> bool:
        return any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(function))

    def _begins_here(self, name: str) -> bool:
        """Tell whether a name is set anew before each run of the loop."""
        node: ast.AST = self.loop
        for outer in self.script.above(self.loop):
            for body in (getattr(outer, part, None) for part in ("body", "orelse", "finalbody")):
                if isinstance(body, list) and node in body:
                    earlier = body[: body.index(node)]
                    if any(name in _stored(s) for s in earlier):
                        return True
            if isinstance(outer, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)):
                return False
            node = outer
        return False


class _Reads:
    """Where values of a rank's rows are looked at."""

    def __init__(self, plan: Plan, early: set[ast.stmt]) -> None:
        self.plan, self.script, self.early = plan, plan.script, early
        self.hoisted: dict[tuple[ast.AST, str], tuple[ast.stmt, str]] = {}

    def rewrite(self) -> None:
        for node in self.script.all(ast.Expr, ast.AugAssign, ast.Assign, ast.If, ast.While):
            assert isinstance(node, ast.stmt)
            self._look(node)

    def _look(self, node: ast.stmt) -> None:
        root = self._read(node)
        if root is None:
            return
        leaves: list[ast.expr] = []
        if isinstance(root, ast.Call) and isinstance(node, ast.Expr):  # what is shown or kept, not what keeps it
            for argument in [*root.args, *(k.value for k in root.keywords)]:
                self._collect(argument, leaves)
        else:
            self._collect(root, leaves)
        if not leaves:
            return
        loop = self.plan.loop_of(node)
        if loop is not None and not self.plan.trains(loop):
            if isinstance(node, (ast.If, ast.While)):
                self.script.todo(node, "ranks see different rows here, and may decide differently")
            elif isinstance(node, ast.Expr):
                self.script.note(node, _LOCAL)
            return
        if isinstance(node, ast.While) or self._is_elif(node):
            self.script.todo(node, "ranks see different rows here, and may decide differently")
            return
        self._hoist(node, leaves)

    def _read(self, node: ast.stmt) -> ast.expr | None:
        """Find the expression of a statement that shows, keeps or decides something."""
        if isinstance(node, (ast.If, ast.While)):
            return node.test
        if node in self.early:
            return node.value  # type: ignore[attr-defined,no-any-return]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            name = tail(call)
            if name == "append" and (self.plan.loop_of(node) is not None or not self._is_after_a_loop(node)):
                return None
            if name in _LOGGING or (name == "step" and len(call.args) == 1):
                return call
            shown = isinstance(call.func, (ast.Name, ast.Attribute)) and self.plan.bindings.callee(call) is None
            return call if shown and name not in _SILENT else None
        if isinstance(node, ast.Assign):
            text = any(
                isinstance(n, ast.JoinedStr)
                or (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) and isinstance(n.left, ast.Constant))
                or (isinstance(n, ast.Call) and tail(n) == "format")
                for n in ast.walk(node.value)
            )
            return node.value if text else None
        return None

    def _is_after_a_loop(self, node: ast.stmt) -> bool:
        function = self.script.function(node)
        return any(self.script.function(loop) is function for loop in self.plan.flow.loader_loops)

    def _collect(self, node: ast.AST, leaves: list[ast.expr]) -> None:
        if isinstance(node, ast.expr):
            found = self.plan.flow.kind(node)
            reducible = found.kind in _REDUCED or (found.kind is Kind.OTHER and found.reason in self.plan.reasons)
            if reducible and not found.items:
                inner = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
                kinds = {self.plan.flow.kind(c).kind for c in inner}
                if dotted(node) or not kinds & {*_REDUCED, Kind.OTHER} or isinstance(node, ast.Subscript):
                    leaves.append(node)
                    return
            elif found.kind is Kind.OTHER and not isinstance(
                node, (ast.Compare, ast.BoolOp, ast.Call, ast.BinOp, ast.Tuple)
            ):
                self.script.todo(node, f"{ast.unparse(node)} {found.reason}: work it out of all ranks' rows")
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.expr, ast.keyword)):
                self._collect(child, leaves)

    def _hoist(self, node: ast.stmt, leaves: list[ast.expr]) -> None:
        place = self.script.statement(node)
        names: dict[ast.AST, str] = {}
        fresh: dict[str, list[tuple[str, str]]] = {}
        for leaf in leaves:
            code = ast.unparse(leaf)
            if (known := self._known(place, leaf, code)) is not None:
                names[leaf] = known
                continue
            kind = self.plan.flow.kind(leaf).kind
            helper = self.plan.use(_REDUCED.get(kind, "all_mean"))
            pair = (self._name(leaf), code)
            if pair not in fresh.setdefault(helper, []):
                fresh[helper].append(pair)
            names[leaf] = pair[0]
            self.hoisted[self.script.parents[place], code] = (place, pair[0])
        for helper, pairs in fresh.items():
            left, right = ", ".join(n for n, _ in pairs), ", ".join(c for _, c in pairs)
            self.script.before(place, f"{left} = {helper}({right})")
        self.script.substitute(names)

    def _known(self, place: ast.stmt, leaf: ast.expr, code: str) -> str | None:
        """Find the name of a value that was reduced just above, and has not changed since."""
        earlier, name = self.hoisted.get((self.script.parents[place], code), (None, ""))
        block = self.script.block(place)
        if earlier is None or earlier not in block:
            return None
        between = block[block.index(earlier) : block.index(place)]
        used = {n.id for n in ast.walk(leaf) if isinstance(n, ast.Name)}
        changed = {
            n.id for s in between for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        return None if used & changed or name in changed else name

    def _name(self, leaf: ast.expr) -> str:
        named = dotted(leaf).rsplit(".", 1)[-1]
        if not named:
            inner = [n.id for n in ast.walk(leaf) if isinstance(n, ast.Name) and self.plan.flow.kind(n).of_rows]
            named = "count" if self.plan.flow.kind(leaf).kind is Kind.COUNT else inner[0] if inner else "value"
        return f"global_{named}"

    def _is_elif(self, node: ast.stmt) -> bool:
        parent = self.script.parents[node]
        return isinstance(node, ast.If) and isinstance(parent, ast.If) and parent.orelse == [node]


def _stored(statement: ast.stmt) -> set[str]:
    return {
        dotted(n)
        for n in ast.walk(statement)
        if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)
    } - ({dotted(statement.target)} if isinstance(statement, ast.AugAssign) else set())
