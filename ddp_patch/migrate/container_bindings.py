"""What dictionaries, lists and tuples hold, and what loops and subscripts take out of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .bindings import Bindings, Key
from .script import Script
from .tree import dotted, tail

_AROUND = {"enumerate", "tqdm", "list", "tuple", "reversed", "sorted", "iter"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_Pair = tuple[object, ast.expr]  # under which constant, if that is known; what


class ContainerBindings(Bindings):
    """Names, and containers of what they hold: ``loaders[phase]``, ``for name, loader in loaders.items()``."""

    def __init__(self, script: Script, folder: Path | None = None) -> None:
        self._put: dict[Key, list[_Pair]] = {}
        self._taken: dict[Key, list[ast.expr]] = {}  # what a name is set to, if no name and no call is
        self._asked: set[ast.AST] = set()  # a container may hold itself
        self._unclear: set[Key] = set()  # names that may be what cannot be read here
        super().__init__(script, folder)
        for node in script.all(ast.Assign):
            for target in node.targets:
                self._fill(target, node.value)
        for call in script.calls():
            key = self.key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if key is not None and call.args and tail(call) == "append":
                self._put.setdefault(key, []).append((None, call.args[0]))
            if (function := self.callee(call)) is not None:
                for name, value in self.arguments(call, function).items():
                    self._take((function, name), value)
                    if self.key(value) is None and not isinstance(value, (ast.Constant, ast.Subscript)):
                        self._unclear.add((function, name))
        read: set[ast.AST] = {t for n in script.all(ast.Assign) if isinstance(n.value, ast.Constant) for t in n.targets}
        for node in script.all(ast.For, ast.comprehension):
            for inner, source in self._each(node.target, node.iter):
                read.add(inner)
                if (key := self.key(inner)) is not None:
                    self._taken.setdefault(key, []).append(source)
        stored = (n for n in script.all(ast.Name, ast.Attribute) if isinstance(n.ctx, ast.Store) and n not in read)
        self._unclear.update(key for n in stored if (key := self.key(n)) is not None)
        for function in script.all(ast.FunctionDef, ast.AsyncFunctionDef):
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
            defaults = zip(reversed(names), reversed(function.args.defaults), strict=False)
            keywords = zip((a.arg for a in function.args.kwonlyargs), function.args.kw_defaults, strict=True)
            for name, value in (*defaults, *keywords):
                if value is not None:
                    self._take((function, name), value)

    def origins(self, node: ast.AST) -> list[ast.Call]:
        """List the calls whose results an expression may hold, also one that takes it out of a container."""
        if node in self._asked:
            return []
        self._asked.add(node)
        try:
            found = super().origins(node)
            for value in self._values(node):
                found = [*found, *(call for call in self._made(value) if call not in found)]
            return found
        finally:
            self._asked.discard(node)

    def _values(self, node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Subscript):
            return self.items(node.value, node.slice)
        key = self.key(node)
        if key is None or not self._taken:
            return []
        groups = self.groups(key)
        return [value for other, values in self._taken.items() if self.root(other) in groups for value in values]

    def _made(self, value: ast.expr) -> list[ast.Call]:
        if isinstance(value, ast.IfExp):
            return [*self._made(value.body), *self._made(value.orelse)]
        return [value] if isinstance(value, ast.Call) else self.origins(value)

    def items(self, container: ast.expr, under: ast.expr | None = None) -> list[ast.expr]:
        """List what a container holds, as far as it can be read, under what an expression may be or under anything."""
        pairs, wanted = self._all(container), self._constants(under)
        if wanted and (found := [value for key, value in pairs if key in wanted]):
            return found
        return [value for key, value in pairs if not wanted or key is None]

    def _constants(self, node: ast.expr | None) -> list[object]:
        """List what a constant, or the name of some, may be; nothing if that cannot be told."""
        if isinstance(node, ast.Constant):
            return [node.value]
        key = None if node is None else self.key(node)
        groups = set() if key is None else set(self.groups(key))
        recorded = {self.root(each) for each in (*self._taken, *self.several)}
        if node is None or not groups <= recorded or groups & set(map(self.root, self._unclear)):
            return []
        values = self._values(node)
        found: list[object] = [value.value for value in values if isinstance(value, ast.Constant)]
        return found if len(found) == len(values) else []

    def _all(self, container: ast.expr) -> list[_Pair]:
        if pairs := list(_written(container)):
            return pairs
        key = self.key(container)
        if key is None:
            return []
        groups = self.groups(key)
        return [pair for other, pairs in self._put.items() if self.root(other) in groups for pair in pairs]

    def _fill(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            if (key := self.key(target.value)) is not None:
                self._put.setdefault(key, []).append((_constant(target.slice), value))
            return
        key = self.key(target)
        if key is None:
            return
        values = [value]
        if isinstance(value, ast.Call) and (function := self.callee(value)) is not None:
            returned = [node for node in self.script.all(ast.Return) if self.script.function(node) is function]
            values = [node.value for node in returned if node.value is not None]
        for each in values:
            self._take(key, each)

    def _take(self, key: Key, value: ast.expr) -> None:
        self._put.setdefault(key, []).extend(_written(value))
        if isinstance(value, (ast.Subscript, ast.Constant)):
            self._taken.setdefault(key, []).append(value)

    def _each(self, target: ast.expr, over: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Give each name that a loop sets with what it is set to."""
        name = tail(over) if isinstance(over, ast.Call) else ""
        pair = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
        if isinstance(over, ast.Call) and name == "enumerate" and over.args:
            if pair:
                yield from self._each(pair[1], over.args[0])
        elif isinstance(over, ast.Call) and name in _AROUND and over.args:
            yield from self._each(target, over.args[0])
        elif isinstance(over, ast.Call) and name == "zip" and isinstance(target, ast.Tuple):
            for each, iterable in zip(target.elts, over.args, strict=False):
                yield from self._each(each, iterable)
        elif isinstance(over, ast.Call):
            container = over.func.value if isinstance(over.func, ast.Attribute) else None
            inner = target if name == "values" else pair[1] if name == "items" and pair else None
            if container is not None and inner is not None:
                yield from ((inner, value) for value in self.items(container))
        else:
            yield from (pairs for value in self.items(over) for pairs in _matched(target, value))


def _matched(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple):
        inside = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        if len(inside) == len(target.elts):
            for name, element in zip(target.elts, inside, strict=True):
                yield from _matched(name, element)
    else:
        yield target, value


def _written(value: ast.expr) -> Iterator[_Pair]:
    """Read what a container is written with."""
    if isinstance(value, ast.Dict):
        yield from ((_constant(key), each) for key, each in zip(value.keys, value.values, strict=True))
    elif isinstance(value, (ast.List, ast.Tuple)):
        yield from enumerate(value.elts)
    elif isinstance(value, ast.DictComp):
        yield None, value.value
    elif isinstance(value, _COMPREHENSIONS):
        yield None, value.elt
    elif isinstance(value, ast.Call) and dotted(value.func) in ("dict", "OrderedDict", "collections.OrderedDict"):
        yield from ((each.arg, each.value) for each in value.keywords if each.arg is not None)


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
