"""Which loops run over loaders, and over which ones."""

from __future__ import annotations

import ast
from collections.abc import Collection

from .bindings import Bindings
from .script import Script
from .tree import Function, dotted, keyword, tail
from .values import SAME, Value


class Iterated:
    """Knows the loaders; Calls, Expressions and Flow add what values are."""

    def __init__(self, script: Script, bindings: Bindings, whole: Collection[ast.expr] = ()) -> None:
        self.script, self.bindings, self._whole = script, bindings, whole
        self._loops: list[ast.For] = []
        self._looked_up: dict[ast.expr, set[ast.expr]] = {}
        self.divided: dict[ast.AST, tuple[ast.expr, ast.For]] = {}  # sums over a loop's rows: by what, which loop
        self.kinds: dict[ast.AST, Value] = {}
        self.closures: dict[str, tuple[Function, dict[str, Value]]] = {}
        self.loader_loops: dict[ast.For, ast.expr] = {}
        self.globals: dict[str, Value] = {}
        self.returned: Value | None = None
        # What loaders call their batch size: a tensor of that many rows is dealt as the batch is.
        loaders = [call for call in script.calls() if tail(call) == "DataLoader"]
        self.sizes = {dotted(keyword(call, "batch_size", 1)) for call in loaders} - {""}

    def kind(self, node: ast.AST) -> Value:
        """Tell what an expression was found to be."""
        return self.kinds.get(node, SAME)

    def call_function(self, function: Function, values: dict[str, Value]) -> Value:
        """Run a function of the script; Flow does."""
        raise NotImplementedError

    def loader(self, node: ast.expr) -> ast.expr | None:
        """Find the loader that is iterated: a name, or the call that makes it."""
        if isinstance(node, ast.Call) and tail(node) in ("enumerate", "tqdm") and node.args:
            return self.loader(node.args[0])
        while isinstance(node, ast.Call) and tail(node) in (
            "enumerate",
            "tqdm",
            "iter",
            "list",
            "zip",
            "islice",
            "cycle",
        ):
            if not node.args:
                return None
            node = node.args[0]
        if isinstance(node, ast.Call):
            return node if tail(node) in ("DataLoader",) else None
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            named = node.value if isinstance(node, ast.Subscript) else node
            made = {tail(call) for call in self._makers(node)}
            if "DataLoader" in made:
                return node
            group = self.bindings.group(named)
            words = {dotted(named), *(self.bindings.names.get(group, ()) if group else ())}
            called = any(word.rsplit(".", 1)[-1].lower().endswith(("loader", "_dl")) for word in words)
            if called and not isinstance(node, ast.Subscript) and not made & {"dict", "list"}:
                return node
            for call in self.bindings.origins(named):
                if tail(call) in ("tqdm", "enumerate") and call.args:
                    return self.loader(call)
        return None

    def is_counted(self, node: ast.expr) -> bool:
        """Tell whether what is iterated yields (number, batch): ``pbar = enumerate(loader)``."""
        return any(tail(call) == "enumerate" for call in self.bindings.origins(node))

    def loader_calls(self, over: ast.expr) -> set[ast.expr]:
        """Find what makes the loader that is iterated, or the name by which it comes from another file."""
        if isinstance(over, ast.Call):
            return {over}
        named = over.value if isinstance(over, ast.Subscript) else over
        return {c for c in self._makers(over) if tail(c) == "DataLoader"} or self._foreign_loaders(named)

    def _makers(self, over: ast.expr) -> list[ast.Call]:
        """List the calls that made what is iterated, or the container that it is taken of."""
        return self.bindings.origins(over) or (
            self.bindings.origins(over.value) if isinstance(over, ast.Subscript) else []
        )

    def _foreign_loaders(self, named: ast.expr) -> set[ast.expr]:
        if named not in self._looked_up:
            self._looked_up[named] = set()  # what is asked for meanwhile is the same
            if self.loader(named) is not None:
                self._looked_up[named] = set(self.bindings.received(named))
        return self._looked_up[named]

    def is_whole(self, over: ast.expr | None) -> bool:
        """Tell whether every rank takes all rows of a loader."""
        return bool(self._whole) and over is not None and bool(calls := self.loader_calls(over)) and all(
            call in self._whole for call in calls
        )  # fmt: skip
