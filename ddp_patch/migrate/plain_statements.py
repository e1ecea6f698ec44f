"""Statements that a script of one process does not need."""

from __future__ import annotations

import ast

from .constants import UNKNOWN
from .plain_pass import Pass
from .taken import (
    ARGUMENTS,
    OWN_FUNCTIONS,
    STATEMENTS,
    WRAPPERS,
)  # fmt: skip
from .tree import dotted, tail


class Statements(Pass):
    """Takes statements out, or puts what hangs on them in their place."""

    def _delete(self, node: ast.stmt) -> None:
        block, parent = self.script.block(node), self.script.parents[node]
        if isinstance(parent, ast.FunctionDef) and len(block) == 1 and not self._is_method(parent):
            self._delete_function(parent)
            return
        self.script.delete(node)

    def _is_method(self, node: ast.AST) -> bool:
        return isinstance(self.script.parents[node], ast.ClassDef)

    def _delete_function(self, function: ast.FunctionDef) -> None:
        calls = [c for c in self.script.calls() if tail(c) == function.name]
        if all(isinstance(self.script.parents[c], ast.Expr) for c in calls):
            self.script.delete(function)
            for call in calls:
                statement = self.script.parents[call]
                if not self.script.is_replaced(statement):
                    self._delete(statement)  # type: ignore[arg-type]

    def statement(self, node: ast.stmt) -> None:
        """Take out a statement, or a part of it."""
        match node:
            case ast.If():
                self._if(node)
            case ast.Expr(value=ast.Call()) if self._is_taken(node.value):
                self._delete(node)
            case ast.Assign():
                self._assign(node)
            case ast.AugAssign() if self.constants.is_ranked(node.value):
                value = self.constants.value(node.value)
                if value == (0 if isinstance(node.op, (ast.Add, ast.Sub)) else 1):
                    self._delete(node)
            case ast.With():
                self._with(node)
            case ast.FunctionDef() if node.name in OWN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name and node not in self.script.above(c)]:
                    self.script.delete(node)
            case ast.ClassDef() if node.name in OWN_FUNCTIONS:
                if not [c for c in self.script.calls() if tail(c) == node.name]:
                    self.script.delete(node)
            case ast.FunctionDef(body=[ast.Pass()]) if not self._is_method(node):
                self._delete_function(node)
            case ast.Import() if any(a.name == "ddp_patch" for a in node.names):
                self.script.delete(node)

    def _is_taken(self, call: ast.expr) -> bool:
        assert isinstance(call, ast.Call)
        name = dotted(call.func)
        if name.startswith("ddp_patch.") or tail(call) in STATEMENTS:
            return name.split(".")[0] != "self" or tail(call) != "barrier"
        if name == "torch.cuda.set_device":
            return True
        if tail(call) == "add_argument" and call.args and isinstance(call.args[0], ast.Constant):
            return call.args[0].value in ARGUMENTS
        if tail(call) in ("manual_seed", "seed") and call.args:
            return "initial_seed" in ast.unparse(call.args[0])
        if tail(call) == "setdefault" and call.args and isinstance(call.args[0], ast.Constant):
            return str(call.args[0].value) in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        return False

    def _if(self, node: ast.If) -> None:
        if not self.constants.is_ranked(node.test):
            if (
                not any(isinstance(s, (ast.Expr, ast.Pass)) is False for s in node.body)
                and all(isinstance(s, ast.Pass) for s in node.body)
                and not node.orelse
            ):
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
            self._delete(node)
        elif isinstance(target, ast.Tuple) and all(map(self.constants.is_known, target.elts)):
            if self.constants.is_ranked(value):
                self._delete(node)
        elif name.endswith("require_backward_grad_sync") or (
            isinstance(value, ast.Call) and tail(value) == "Accelerator"
        ):
            self._accelerator(value)
            self._delete(node)
        elif isinstance(value, ast.Call) and tail(value) == "DistributedSampler":
            if not self._uses_of(name):
                self._delete(node)
        elif self.script.code(target) == self.script.code(value) or (
            isinstance(value, ast.Call)
            and (tail(value) in WRAPPERS or self.gives_back(value))
            and ast.unparse(target).strip("()")
            == ", ".join(map(ast.unparse, value.args[: 1 if tail(value) in WRAPPERS else None])).strip("()")
        ):
            self._delete(node)

    def _accelerator(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            for given in value.keywords:
                if given.arg in ("mixed_precision", "gradient_accumulation_steps"):
                    self.script.todo(
                        value, f"{given.arg} was Accelerate's to do: write it out, or start by accelerate launch"
                    )

    def _uses_of(self, name: str) -> int:
        return sum(isinstance(n.ctx, ast.Load) and dotted(n) == name for n in self.script.all(ast.Name, ast.Attribute))


def _last(item: ast.withitem) -> ast.expr:
    return item.context_expr if item.optional_vars is None else item.optional_vars
