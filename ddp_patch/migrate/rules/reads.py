"""What the script prints, keeps or decides by inside of a loop is that of all ranks."""

from __future__ import annotations

import ast
from functools import cached_property
from itertools import count

from ..plan import Plan
from ..tree import dotted, tail
from ..values import Kind
from .containers import COMPREHENSIONS, REDUCED, reduced
from .gathered import LOCAL

ROWS = "# of rank 0's rows"

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


def apply(plan: Plan, early: set[ast.stmt]) -> None:
    """Reduce what is read where it is read."""
    _Reads(plan, early).rewrite()


class _Reads:
    """Where values of a rank's rows are looked at."""

    def __init__(self, plan: Plan, early: set[ast.stmt]) -> None:
        self.plan, self.script, self.early = plan, plan.script, early
        self.hoisted: dict[tuple[ast.AST, str], tuple[ast.stmt, str]] = {}
        self.names: dict[ast.AST, dict[str, str]] = {}  # of each block: what they are for

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
            self._foreign(node, root)
            return
        if any(outer in self.plan.flow.samples for outer in self.script.above(node)):
            if isinstance(node, ast.Expr):
                self.script.note(node, ROWS)
            return  # a row at a time
        loop = self.plan.loop_of(node)
        if loop is not None and not self.plan.trains(loop):
            if isinstance(node, (ast.If, ast.While)):
                self.script.todo(node, "ranks see different rows here, and may decide differently")
            elif isinstance(node, ast.Expr):
                self.script.note(node, LOCAL)
            return
        if isinstance(node, ast.While) or self._is_elif(node):
            self.script.todo(node, "ranks see different rows here, and may decide differently")
            return
        self._hoist(node, leaves)

    def _foreign(self, node: ast.stmt, root: ast.expr) -> None:
        """Say of what an object keeps of its rows that others show: ``trainer.loss``."""
        for inner in ast.walk(root):
            name = isinstance(inner, ast.Attribute) and inner.attr in self.kept and dotted(inner)
            if name and not name.startswith("self.") and not self.plan.flow.kind(inner).of_rows:
                self.script.todo(node, f"{name} is of this rank's rows: show all_mean({name})")
                return

    @cached_property
    def kept(self) -> set[str]:
        """List the attributes in which a training keeps what it reduces nowhere else."""
        return {
            target.attr
            for node in self.script.all(ast.Assign)
            if self.plan.in_training(node)
            for target in node.targets
            if isinstance(target, ast.Attribute)
            and dotted(target.value) == "self"
            and self.plan.flow.kind(target).kind in (*REDUCED, Kind.OTHER)
        }

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
        if isinstance(node, (ast.Assign, ast.AugAssign)):
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
            if dotted(node) and found.items and all(i.kind in (Kind.SAME, *REDUCED) for i in found.items):
                if found.of_rows:
                    leaves.append(node)
                return
            if isinstance(node, COMPREHENSIONS) and not isinstance(node, ast.GeneratorExp) and found.kind in REDUCED:
                leaves.append(node)
                return
            reducible = found.kind in REDUCED or (found.kind is Kind.OTHER and found.reason in self.plan.reasons)
            if reducible and not found.items:
                inner = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
                kinds = {self.plan.flow.kind(c).kind for c in inner}
                each = any(isinstance(c, ast.GeneratorExp) for c in inner)
                if dotted(node) or each or not kinds & {*REDUCED, Kind.OTHER} or isinstance(node, ast.Subscript):
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
        if place is not node and not self.script.split(node):
            self.script.todo(node, "ranks see different rows here: put it on a line of its own, then migrate again")
            return
        names: dict[ast.AST, str] = {}
        fresh: dict[str, list[tuple[str, str]]] = {}
        lines: list[str] = []
        used_names = self.names.setdefault(self.script.parents[place], {})
        for leaf in leaves:
            code = ast.unparse(leaf)
            if any(isinstance(outer, COMPREHENSIONS) for outer in self.script.above(leaf)):  # it is not there above
                self.script.todo(node, f"{code} is of this rank's rows: reduce it over the ranks, above")
                continue
            if (existing := self._existing_name(place, leaf, code)) is not None:
                names[leaf] = existing
                continue
            kind = self.plan.flow.kind(leaf).kind
            helper = self.plan.use(REDUCED.get(kind, "all_mean"))
            pair = (self._name(leaf, code, used_names), code)
            if (whole := reduced(self.plan, leaf, code, helper)) is not None:
                lines.append(f"{pair[0]} = {whole}")
            elif pair not in fresh.setdefault(helper, []):
                fresh[helper].append(pair)
            names[leaf] = pair[0]
            self.hoisted[self.script.parents[place], code] = (place, pair[0])
        for helper, pairs in fresh.items():
            left, right = ", ".join(n for n, _ in pairs), ", ".join(c for _, c in pairs)
            lines.append(f"{left} = {helper}({right})")
        self.script.before(node if self.script.is_split(node) else place, *dict.fromkeys(lines))
        self.script.substitute(names)

    def _existing_name(self, place: ast.stmt, leaf: ast.expr, code: str) -> str | None:
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

    def _name(self, leaf: ast.expr, code: str, used_names: dict[str, str]) -> str:
        """Name what is reduced, each value of a block by another name."""
        named = dotted(leaf).rsplit(".", 1)[-1]
        if not named:
            inner = [n.id for n in ast.walk(leaf) if isinstance(n, ast.Name) and self.plan.flow.kind(n).of_rows]
            named = "count" if self.plan.flow.kind(leaf).kind is Kind.COUNT else inner[0] if inner else "value"
        names = (f"global_{named}" if n == 1 else f"global_{named}_{n}" for n in count(1))
        return next(name for name in names if used_names.setdefault(name, code) == code)

    def _is_elif(self, node: ast.stmt) -> bool:
        parent = self.script.parents[node]
        return isinstance(node, ast.If) and isinstance(parent, ast.If) and parent.orelse == [node]
