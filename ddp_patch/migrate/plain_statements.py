"""Statements that a script of one process does not need."""

from __future__ import annotations

import ast

from ..source.notebooks import is_put_aside
from .evaluation import UNKNOWN
from .rules.seeds import OWN_DRAWS
from .samplers import Samplers
from .taken import (
    ARGUMENTS,
    COLLECTIVES,
    STATEMENTS,
    WRAPPERS,
    WRITTEN_FUNCTIONS,
)  # fmt: skip
from .tree import dotted, tail


class Statements(Samplers):
    """Takes statements out, or puts what hangs on them in their place."""

    def _delete(self, node: ast.stmt) -> None:
        block, parent = self.script.block(node), self.script.parents[node]
        if isinstance(parent, ast.FunctionDef) and len(block) == 1 and not self._is_method(parent):
            self.state.emptied.add(parent.name)
            if self._delete_function(parent):
                return
        self.script.delete(node)

    def _is_method(self, node: ast.AST) -> bool:
        return isinstance(self.script.parents[node], ast.ClassDef)

    def _delete_function(self, function: ast.FunctionDef) -> bool:
        """Take a function out with its calls, if nothing is made of what it gives, and it is named for nothing else."""
        script, bindings = self.script, self.bindings
        calls = bindings.callers.get(function, [])
        statements = [script.parents[c] for c in calls]
        names = [n for n in script.all(ast.Name) if n.id == function.name]
        of = bindings.key(function, function.name)
        if not calls or function.decorator_list or any(bindings.key(n) != of for n in names):
            return False
        if not {*names} <= {c.func for c in calls} or not all(isinstance(s, ast.Expr) for s in statements):
            return False
        if any(script.is_replaced(s) or self._is_decided(s) for s in statements):
            return False  # the next pass sees them
        script.delete(function)
        for statement in statements:
            if not script.is_replaced(statement):
                self._delete(statement)  # type: ignore[arg-type]
        return True

    def _is_decided(self, statement: ast.AST) -> bool:
        """Tell whether a statement stands under a test that goes in this pass."""
        tests = [n.test for n in self.script.above(statement) if isinstance(n, ast.If)]
        return any(self.constants.is_ranked(t) and self.constants.value(t) is not UNKNOWN for t in tests)

    def statement(self, node: ast.stmt) -> None:
        """Take out a statement, or a part of it."""
        match node:
            case ast.If():
                self._if(node)
            case ast.Expr(value=ast.Call()) if tail(node.value) == "init_distributed_mode":
                self._mode(node)
            case ast.Expr(value=ast.Call()) if self._is_taken(node.value) or self._is_written_seed(node):
                self._delete(node)
            case ast.Assign():
                self._assign(node)
            case ast.AugAssign() if self.constants.is_ranked(node.value):
                if self.constants.changes_nothing(node):
                    self._delete(node)
            case ast.With():
                self._with(node)
            case ast.FunctionDef() if node.name in WRITTEN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name and node not in self.script.above(c)]:
                    self.script.delete(node)
            case ast.ClassDef() if node.name in WRITTEN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name]:
                    self.script.delete(node)
            case ast.FunctionDef(body=[ast.Pass()]) if node.name in self.state.emptied and not self._is_method(node):
                self._delete_function(node)
            case ast.Import() if any(a.name == "ddp_patch" for a in node.names):
                self.script.delete(node)

    def _is_taken(self, call: ast.expr) -> bool:
        assert isinstance(call, ast.Call)
        name = dotted(call.func)
        if name.startswith("ddp_patch.") or tail(call) in STATEMENTS:
            return True
        if tail(call) in COLLECTIVES:
            return self.is_of_processes(call)
        if tail(call) == "set_epoch":
            return self.is_spent(call)
        if name == "torch.cuda.set_device":
            return True
        if tail(call) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            name = str(call.args[0].value)
            return name in ARGUMENTS and not any(
                n.attr == name.strip("-").replace("-", "_") and isinstance(n.ctx, ast.Load)
                for n in self.script.all(ast.Attribute)
            )
        if tail(call) == "setdefault" and call.args and isinstance(call.args[0], ast.Constant):
            return str(call.args[0].value) in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        return False

    def _is_written_seed(self, node: ast.Expr) -> bool:
        """Tell whether a migration wrote a seed: by torch's comment, and numpy's and Python's below it."""
        if OWN_DRAWS.encode() in self.script.rest_of_line(node):
            return True
        block = self.script.block(node)
        before = block[block.index(node) - 1] if block.index(node) else None
        is_second = tail(node.value) == "seed" and "(torch.initial_seed() % 2**32)" in self.script.code(node)
        return is_second and isinstance(before, ast.Expr) and self._is_written_seed(before)

    def _mode(self, node: ast.Expr) -> None:
        """Say what one process is told by ``init_distributed_mode(args)`` of torchvision's scripts."""
        assert isinstance(node.value, ast.Call)
        args = node.value.args[:1]
        if not args:
            self._delete(node)
        elif dotted(args[0]):
            self.script.replace(node, f"{dotted(args[0])}.distributed = False")

    def _if(self, node: ast.If) -> None:
        if not self.constants.is_ranked(node.test):
            aside = any(is_put_aside(self.script.lines[s.lineno - 1].decode()) for s in node.body)
            if all(isinstance(s, ast.Pass) for s in node.body) and not node.orelse and not aside:
                self._delete(node)
            return
        value = self.constants.value(node.test)
        if value is UNKNOWN:
            if isinstance(node.test, ast.BoolOp):
                self._simplify(node.test)
            return
        body = node.body if value else node.orelse
        if self._is_elif(node):
            return
        if not body:
            self._delete(node)
        elif len(body) == 1 and isinstance(body[0], ast.If) and body is node.orelse:
            start, _ = self.script.span(node)
            first, end = self.script.span(body[0])
            text = self.script.data[first:end].decode()
            self.script.put(start, end, text.replace("elif", "if", 1) if text.startswith("elif") else text)
        else:
            self._unindent(node, body)

    def _with(self, node: ast.With) -> None:
        """Leave out ``no_sync()``, which a bare model does not have, and keep what stands beside it."""
        kept = [item for item in node.items if not self.is_no_sync(item.context_expr)]
        if not kept:
            self._unindent(node, node.body)
        elif len(kept) < len(node.items):
            start, end = self.script.span(node.items[0].context_expr)[0], self.script.span(_last(node.items[-1]))[1]
            self.script.put(start, end, ", ".join(map(self._item, kept)))

    def _item(self, item: ast.withitem) -> str:
        name = f" as {self.script.code(item.optional_vars)}" if item.optional_vars is not None else ""
        return self.script.code(item.context_expr) + name

    def _is_elif(self, node: ast.If) -> bool:
        parent = self.script.parents[node]
        return isinstance(parent, ast.If) and parent.orelse == [node] and self.script.code(node).startswith("elif")

    def _simplify(self, test: ast.BoolOp) -> None:
        """Leave out of ``master and epoch > 0`` what is true anyway."""
        left = [v for v in test.values if self.constants.value(v) is UNKNOWN]
        if len(left) < len(test.values):
            word = " and " if isinstance(test.op, ast.And) else " or "
            self.script.replace(test, word.join(self._bracketed(v, len(left) > 1) for v in left))

    def _bracketed(self, node: ast.expr, several: bool) -> str:
        code = self.script.code(node)
        return f"({code})" if several and isinstance(node, ast.BoolOp) else code

    def _unindent(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        """Put the statements of a block in the place of what it hangs on, with their comments."""
        script = self.script
        first, last = body[0], body[-1]
        row = script.line_of(first)
        if row <= node.lineno - 1:  # `if rank == 0: print()`
            text = "; ".join(script.code(s) for s in body)
            script.put(*script.span(node), text)
            return
        while script.lines[row - 1].lstrip().startswith(b"#") and row - 1 > node.lineno - 1:
            row -= 1
        outer, inner = script.indent(node), script.indent(first)
        strings = script.rows_in_strings()
        lines = []
        for number in range(row, last.end_lineno):  # type: ignore[arg-type]
            line = script.lines[number].decode()
            if number not in strings and line.startswith(inner):
                line = outer + line[len(inner) :]
            lines.append(line)
        script.put_rows(node.lineno - 1, node.end_lineno, "".join(lines))  # type: ignore[arg-type]

    def _assign(self, node: ast.Assign) -> None:
        target, value = node.targets[0], node.value
        name = dotted(target)
        if name and self.constants.is_known(target) and self.constants.is_ranked(value):
            if self.constants.value(value) is not UNKNOWN:
                self._delete(node)
        elif isinstance(target, ast.Tuple) and all(map(self.constants.is_known, target.elts)):
            if isinstance(value, ast.Tuple) and UNKNOWN not in map(self.constants.value, value.elts):
                self._delete(node)
        elif name.endswith("require_backward_grad_sync") or (
            isinstance(value, ast.Call) and tail(value) == "Accelerator"
        ):
            self._accelerator(value)
            self._delete(node)
        elif isinstance(value, (ast.Call, ast.IfExp)) and _makes_sampler(value):
            if not self._uses_of(target):
                self._delete(node)
            elif self.is_only(target):
                self.script.replace(value, "None")
        elif self.script.code(target) == self.script.code(value) or (
            isinstance(value, ast.Call)
            and (tail(value) in WRAPPERS or self.gives_back(value))
            and ast.unparse(target).strip("()")
            == ", ".join(map(ast.unparse, value.args[: 1 if tail(value) in WRAPPERS else None])).strip("()")
        ):
            self._delete(node)

    def _accelerator(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            for option in value.keywords:
                if option.arg in ("mixed_precision", "gradient_accumulation_steps"):
                    self.script.todo(
                        value, f"{option.arg} was Accelerate's to do: write it out, or start by accelerate launch"
                    )

    def _uses_of(self, target: ast.expr) -> int:
        key = self.bindings.key(target)
        return sum(
            isinstance(n.ctx, ast.Load) and self.bindings.key(n) == key
            for n in self.script.all(ast.Name, ast.Attribute)
            if tail(n) == tail(target)
        )


def _makes_sampler(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _makes_sampler(value.body) or _makes_sampler(value.orelse)
    return isinstance(value, ast.Call) and tail(value) == "DistributedSampler"


def _last(item: ast.withitem) -> ast.expr:
    return item.context_expr if item.optional_vars is None else item.optional_vars
