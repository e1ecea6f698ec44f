"""Which expressions of a program name the same file."""

from __future__ import annotations

import ast
from functools import cached_property

from .bindings import Bindings, Key
from .script import Script
from .tree import Function, dotted

_MOST = 16  # readings of one expression
_DEPTH = 6
_Reading = tuple[frozenset[str], frozenset[object]]  # the texts in a path, and the names whose values are not known
_NOTHING: _Reading = (frozenset(), frozenset())


class Paths:
    """What paths are made of: ``os.path.join(folder, "rows.npy")`` of a folder and a text, under any name."""

    def __init__(self, script: Script, bindings: Bindings) -> None:
        self._script, self._bindings = script, bindings

    def same(self, one: ast.expr, other: ast.expr, folder: bool) -> bool:
        """Tell whether two expressions may name one file; ``folder``: the first lies in the second."""
        ours, theirs = self._readings(one, _DEPTH), self._readings(other, _DEPTH)
        return any(_same(a, b, folder) for a in ours for b in theirs)

    def assigned(self, name: ast.expr) -> list[ast.expr]:
        """List what is assigned to a name, and what calls give for a parameter."""
        key = self._bindings.key(name)
        if key is None:
            return []
        return self._values.get(key, []) + [value for call, value in self._passed.get(key, []) if call is not name]

    @cached_property
    def _values(self) -> dict[Key, list[ast.expr]]:
        found: dict[Key, list[ast.expr]] = {}
        for node in self._script.all(ast.Assign):
            for target in node.targets:
                key = self._bindings.key(target)
                if key is not None:
                    found.setdefault(key, []).append(node.value)
        return found

    @cached_property
    def _passed(self) -> dict[Key, list[tuple[ast.Call, ast.expr]]]:
        found: dict[Key, list[tuple[ast.Call, ast.expr]]] = {}
        for call in self._script.calls():
            function = self._bindings.callee(call)
            if function is None:
                continue
            arguments = {**_defaults(function), **self._bindings.arguments(call, function)}
            for name, value in arguments.items():
                found.setdefault((function, name), []).append((call, value))
        return found

    def _readings(self, node: ast.AST, depth: int) -> list[_Reading]:
        if isinstance(node, ast.Constant):
            text = str(node.value) if isinstance(node.value, str) else ""
            parts = {part for part in text.replace("\\", "/").split("/") if part.strip("./ ")}
            return [(frozenset(parts), frozenset())]
        name = dotted(node)
        if name and isinstance(node, ast.expr):
            values = self.assigned(node) if depth else []
            readings = [reading for value in values[:_MOST] for reading in self._readings(value, depth - 1)]
            readings = [reading for reading in dict.fromkeys(readings) if reading != _NOTHING]
            # `args.cache` is one thing under every name of `args`.
            itself = node.attr if isinstance(node, ast.Attribute) else self._bindings.group(node)
            return readings[:_MOST] or [(frozenset(), frozenset({itself or name}))]
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            children = [*node.args, *(k.value for k in node.keywords)]
            if isinstance(node.func, ast.Attribute) and not dotted(node.func.value).startswith(("os", "path", "op")):
                children.append(node.func.value)
        found = [_NOTHING]
        for child in children:
            if isinstance(child, ast.expr):
                more = self._readings(child, depth)
                found = list(dict.fromkeys((a | c, b | d) for a, b in found for c, d in more))[:_MOST]
        return found


def _defaults(function: Function) -> dict[str, ast.expr]:
    """Give the parameters that have a value without a call's."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    last = names[len(names) - len(function.args.defaults) :]
    return dict(zip(last, function.args.defaults, strict=True))


def _same(one: _Reading, other: _Reading, folder: bool) -> bool:
    if folder:
        return other != _NOTHING and other[0] <= one[0] and other[1] <= one[1]
    if one[0] or other[0]:
        return one[0] == other[0]
    return bool(one[1]) and one[1] == other[1]
