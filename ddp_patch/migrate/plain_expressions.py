"""Expressions that say something else on one process."""

from __future__ import annotations

import ast

from .evaluation import UNKNOWN
from .samplers import Samplers
from .taken import (
    WRAPPERS,
    WRITTEN_KEYWORDS,
)  # fmt: skip
from .tree import dotted, keyword, tail

_PER_RANK = (
    "under DDP every rank took a batch of this size: multiply it by their number to train on as many rows per step as "
    "before"
)
_ALONE = {  # what an Accelerator has for several processes, on one
    "device": 'torch.device("cuda" if torch.cuda.is_available() else "cpu")',
    "print": "print",
    "save": "torch.save",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
}


class Expressions(Samplers):
    """Writes what an expression is on one process."""

    def expression(self, node: ast.expr) -> None:
        """Write an expression anew, if it depends on ranks."""
        script = self.script
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.JoinedStr) and self.constants.is_ranked(node):
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("cuda:"):
                script.replace(node, '"cuda"')
            else:
                script.substitute(self._rank_values(node))
        elif isinstance(node, ast.IfExp) and self.is_no_sync(node):
            script.replace(node, script.code(node.orelse if tail(node.body) == "no_sync" else node.body))
        elif isinstance(node, ast.IfExp) and self.constants.is_ranked(node.test):
            value = self.constants.value(node.test)
            if value is not UNKNOWN:
                script.replace(node, script.code(node.body if value else node.orelse))
        elif isinstance(node, ast.BinOp) and self.constants.is_ranked(node):
            self._operation(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            cut = node.slice
            if cut.step is not None and cut.upper is None and self.constants.is_ranked(cut.step):
                script.replace(node, script.code(node.value))
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Compare, ast.BoolOp, ast.Call, ast.Subscript, ast.UnaryOp)):
            self._constant(node)

    def _rank_values(self, string: ast.JoinedStr) -> dict[ast.AST, str]:
        """Find what an f-string says of ranks, the largest expressions first."""
        replacements: dict[ast.AST, str] = {}
        for node in ast.walk(string):
            if isinstance(node, ast.BinOp) and self.constants.is_ranked(node.right):
                one = isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)) and self.constants.value(node.right) == 1
                none = isinstance(node.op, (ast.Add, ast.Sub)) and self.constants.value(node.right) == 0
                if one or none:
                    replacements[node] = self.script.operand(node.left, node)
        for node in ast.walk(string):
            value = self.constants.value(node)
            if (
                isinstance(node, (ast.Name, ast.Attribute, ast.Call))
                and value is not UNKNOWN
                and self.constants.is_ranked(node)
            ):
                replacements[node] = repr(value)
        return replacements

    def _constant(self, node: ast.expr) -> None:
        if self.script.is_replaced(node) or not self.constants.is_ranked(node):
            return
        value = self.constants.value(node)
        parent = self.script.parents[node]
        if (value is not UNKNOWN and not isinstance(parent, (ast.keyword,))) or (
            value is not UNKNOWN and isinstance(value, (int, bool))
        ):
            self.script.replace(node, repr(value))

    def _operation(self, node: ast.BinOp) -> None:
        script = self.script
        left, right = self.constants.value(node.left), self.constants.value(node.right)
        match node.op:
            case ast.Mult() | ast.FloorDiv() | ast.Div() if right == 1 and self.constants.is_ranked(node.right):
                script.replace(node, script.operand(node.left, node))
            case ast.Mult() if left == 1 and self.constants.is_ranked(node.left):
                script.replace(node, script.operand(node.right, node))
            case ast.Add() | ast.Sub() if right == 0 and self.constants.is_ranked(node.right):
                script.replace(node, script.operand(node.left, node))

    def _attribute(self, node: ast.Attribute) -> None:
        if node.attr in _ALONE and dotted(node.value) in self.accelerators:
            self.script.replace(node, _ALONE[node.attr])

    def _call(self, node: ast.Call) -> None:
        script, name = self.script, tail(node)
        owner = dotted(node.func).rpartition(".")[0]
        if name in WRAPPERS and node.args:
            script.replace(node, script.operand(node.args[0], node))
        elif self.gives_back(node) and node.args:
            arguments = node.args[:1] if name in ("reduce", "unwrap_model") else node.args
            script.replace(node, ", ".join(script.operand(a, node) for a in arguments))
        elif name == "backward" and owner in self.accelerators and node.args:
            loss = script.code(node.args[0])
            loss = f"({loss})" if isinstance(node.args[0], (ast.BinOp, ast.IfExp)) else loss
            more = ", ".join(script.code(a) for a in [*node.args[1:], *node.keywords])
            script.replace(node, f"{loss}.backward({more})")
        elif name == "whole_batch" and isinstance(around := script.parents[node], (ast.Starred, ast.Subscript)):
            script.replace(around, ", ".join(script.code(a) for a in node.args))
        elif name == "all_batches" and len(node.args) > 1:
            script.replace(node, ", ".join(script.code(a) for a in node.args[1:]))
        elif name in ("rows_of", "batches_of") and node.args:
            loader = script.code(node.args[0])
            script.replace(node, f"len({loader}.dataset)" if name == "rows_of" else f"len({loader})")
        elif written := [
            k for k in node.keywords if k.arg in WRITTEN_KEYWORDS and tail(k.value) == WRITTEN_KEYWORDS[k.arg]
        ]:
            self._drop(node, written[0])
        elif name == "DataLoader":
            self._loader(node)
        elif name == "device" and len(node.args) == 2 and self.constants.is_ranked(node.args[1]):
            script.replace(node, f"{script.code(node.func)}({script.code(node.args[0])})")
        elif name == "cuda" and node.args and self.constants.is_ranked(node.args[0]):
            script.replace(node, f"{script.code(node.func)}()")
        elif (
            name == "to"
            and len(node.args) == 1
            and self.constants.value(node.args[0]) == 0
            and self.constants.is_ranked(node)
        ):
            script.replace(node.args[0], '"cuda"')
        elif name == "spawn" and node.args and dotted(node.args[0]):
            passed = keyword(node, "args", 1)
            codes = [script.code(e) for e in passed.elts] if isinstance(passed, ast.Tuple) else []
            script.replace(node, f"{script.code(node.args[0])}({', '.join(['0', *codes])})")

    def _loader(self, node: ast.Call) -> None:
        """Let the loader shuffle again, and take all rows."""
        script = self.script
        sampler = next((k for k in node.keywords if k.arg == "sampler"), None)
        if sampler is None:
            return
        value = sampler.value
        shuffle = next((k for k in node.keywords if k.arg == "shuffle"), None)
        if code := self.order(node, value):
            size = keyword(node, "batch_size", 1)
            if size is not None and not self._is_shared(size):
                script.todo(node, _PER_RANK)
            script.replace(sampler, f"shuffle={code}")
            if shuffle is not None:
                self._drop(node, shuffle)
        elif isinstance(value, ast.Call) and tail(value) == "range" and self.constants.is_ranked(value):
            self._drop(node, sampler)

    def _is_shared(self, size: ast.expr) -> bool:
        """Tell whether a batch size is divided among the ranks, here or where it was set."""
        if self.constants.is_ranked(size) or tail(size) == "rank_share":
            return True
        return dotted(size) in self.state.divided - {""}

    def _drop(self, call: ast.Call, argument: ast.keyword) -> None:
        start, end = self.script.span(argument)
        before = self.script.data[:start].rstrip()
        if before.endswith(b","):
            self.script.put(len(before) - 1, end, "")
        else:
            self.script.put(start, end, "")
