"""Which names of a script hold the same thing: through assignments, calls of its functions, and ``self``."""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from .definitions import Definitions
from .parts import Part
from .script import Script
from .tree import Function, dotted, tail

Key = tuple[ast.AST | Part | None, str]
# What gives the thing itself, or the thing in a wrapper.
_KEEPING = {
    *("to", "cuda", "cpu", "double", "float", "half", "DataParallel", "convert_sync_batchnorm", "compile", "train"),
    *("DistributedDataParallel", "DDP", "prepare", "enumerate", "tqdm", "trange", "iter", "requires_grad_", "apply"),
    "eval",
}
_METHODS = {"to", "cuda", "cpu", "double", "float", "half", "train", "eval", "requires_grad_", "apply"}


class Bindings(Definitions):
    """Groups of names, and what was put into them."""

    def __init__(self, script: Script, folder: Path | None = None) -> None:
        super().__init__(script, folder)
        self._up: dict[Key, Key] = {}
        self._locals: dict[ast.AST, set[str]] = {}
        self.made: dict[Key, list[ast.Call]] = {}
        self._received: dict[Key, list[ast.expr]] = {}  # names for what functions of other files give
        self.several: dict[Key, set[Key]] = {}  # parameters that get different things from different calls
        self._bind()

    def key(self, node: ast.AST, name: str = "") -> Key | None:
        """Name what an expression refers to, or a name in its place, with the scope that the name belongs to."""
        name = name or dotted(node)
        if not name:
            return None
        first = name.split(".")[0]
        if first == "self" and "." in name:
            return self.class_of(node), name
        for outer in self.script.above(node):
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and first in self._names(outer):
                return outer, name
        part, name = self.script.part(node).refer(name)
        return part.scope, name

    def group(self, node: ast.AST) -> Key | None:
        """Find the group of names that an expression belongs to."""
        key = self.key(node)
        return self.root(key) if key is not None else None

    def root(self, key: Key) -> Key:
        """Find the name that stands for a group."""
        while key in self._up:
            key = self._up[key]
        return key

    def origins(self, node: ast.AST) -> list[ast.Call]:
        """List the calls whose results a name holds."""
        key = self.key(node)
        if key is None:
            return []
        return [call for group in self.groups(key) for call in self._origins.get(group, [])]

    def holds(self, node: ast.AST, group: Key) -> bool:
        """Tell whether a name may hold what a group of names does."""
        key = self.key(node)
        return key is not None and group in self.groups(key)

    def groups(self, key: Key) -> list[Key]:
        """List the groups whose things a name may hold: a parameter holds what each of its callers gives."""
        found = [self.root(key)]
        for root in found:
            found += [group for group in self._argument_groups.get(root, ()) if group not in found]
        return found

    @cached_property
    def _argument_groups(self) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = {}
        for key, others in self.several.items():
            found.setdefault(self.root(key), []).extend(map(self.root, others))
        return found

    @cached_property
    def names(self) -> dict[Key, set[str]]:
        """All names of each group."""
        found: dict[Key, set[str]] = {}
        for key in [*self._up, *self._up.values()]:
            found.setdefault(self.root(key), set()).add(key[1])
        return found

    @cached_property
    def _origins(self) -> dict[Key, list[ast.Call]]:
        found: dict[Key, list[ast.Call]] = {}
        for key, calls in self.made.items():
            found.setdefault(self.root(key), []).extend(calls)
        return found

    def unite(self, a: Key, b: Key) -> None:
        """Say that two names hold the same."""
        a, b = self.root(a), self.root(b)
        if a != b:
            self._up[a] = b

    def _names(self, function: Function) -> set[str]:
        found = self._locals.get(function)
        if found is None:
            args = function.args
            found = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
            found |= {a.arg for a in (args.vararg, args.kwarg) if a is not None}
            outside: set[str] = set()
            stack: list[ast.AST] = list(function.body)
            while stack:
                node = stack.pop()
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
                elif isinstance(node, (ast.Global, ast.Nonlocal)):
                    outside.update(node.names)
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    found.add(node.name)
                    continue
                stack.extend(ast.iter_child_nodes(node))
            found -= outside
            self._locals[function] = found
        return found

    def is_local(self, node: ast.AST) -> bool:
        """Tell whether a name is one of a function around, or a variable at the top, and no function or class."""
        key = self.key(node)
        if not isinstance(node, ast.Name) or key is None or isinstance(key[0], ast.ClassDef):
            return False
        if key[0] is None or isinstance(key[0], Part):
            return any(n.id == node.id and isinstance(n.ctx, ast.Store) for n in self.script.all(ast.Name))
        return self._named(node) is None

    def received(self, node: ast.AST) -> list[ast.expr]:
        """List the names through which something came from functions of other files."""
        key = self.key(node)
        if key is None:
            return []
        groups = self.groups(key)
        return [target for other, targets in self._received.items() if self.root(other) in groups for target in targets]

    def _bind(self) -> None:
        for node in self.script.all(ast.Assign):
            assert isinstance(node, ast.Assign)
            for target in node.targets:
                self._assign(target, node.value)
        for node in self.script.all(ast.With):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr)
        passed: dict[Key, set[Key]] = {}
        for call in self.script.calls():
            function = self.callee(call)
            if function is not None:
                self._pass(call, function, passed)
        for key, others in passed.items():
            if len({self.root(other) for other in others}) > 1:
                self.several[key] = others
            else:
                self.unite(key, next(iter(others)))
        self.__dict__.pop("_origins", None)
        self.__dict__.pop("_argument_groups", None)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values: list[ast.expr] = []
            if isinstance(value, (ast.Tuple, ast.List)):
                values = list(value.elts)
            elif isinstance(value, ast.Call) and tail(value) == "prepare":
                values = list(value.args)
            elif isinstance(value, ast.Call) and self.callee(value) is not None:
                self._returned([self.key(element) for element in target.elts], self.callee(value))
            if len(values) == len(target.elts):
                for inner, inner_value in zip(target.elts, values, strict=True):
                    self._assign(inner, inner_value)
            elif isinstance(value, ast.Call):
                for inner in target.elts:
                    self._receive(inner, value)
            return
        key = self.key(target)
        if key is None:
            return
        thing = value
        while True:
            if isinstance(thing, ast.IfExp):
                self._assign(target, thing.orelse)
                thing = thing.body
            elif isinstance(thing, ast.Call) and tail(thing) in _KEEPING:
                if isinstance(thing.func, ast.Attribute) and thing.func.attr in _METHODS:
                    thing = thing.func.value
                elif thing.args and tail(thing) not in _METHODS:  # `train(loader)` is a function
                    thing = thing.args[0]
                else:
                    break
            else:
                break
        other = self.key(thing)
        if other is not None:
            self.unite(key, other)
        elif isinstance(thing, ast.Call):
            self.made.setdefault(key, []).append(thing)
            self._receive(target, thing)
            function = self.callee(thing)
            if function is not None and function.name != "__init__":
                self._returned([key], function)

    def _receive(self, target: ast.expr, value: ast.Call) -> None:
        is_local = self.callee(value) is not None or self.class_called(value) is not None
        key = self.key(target)
        if key is not None and not is_local:
            self._received.setdefault(key, []).append(target)

    def _returned(self, targets: list[Key | None], function: Function | None) -> None:
        for node in self.script.all(ast.Return):
            if self.script.function(node) is not function or node.value is None:
                continue
            value = node.value
            values = value.elts if isinstance(value, ast.Tuple) and len(targets) > 1 else [value]
            if len(values) == len(targets):
                for key, returned in zip(targets, values, strict=True):
                    other = self.key(returned)
                    if key is not None and other is not None:
                        self.unite(key, other)
                    elif key is not None and isinstance(returned, ast.Call):
                        self.made.setdefault(key, []).append(returned)

    def _pass(self, call: ast.Call, function: Function, found: dict[Key, set[Key]]) -> None:
        for name, value in self.arguments(call, function).items():
            other = self.key(value)
            if other is not None:
                found.setdefault((function, name), set()).add(other)
            elif isinstance(value, ast.Call):
                self.made.setdefault((function, name), []).append(value)
                maker = self.callee(value)
                if maker is not None and maker.name != "__init__":
                    self._returned([(function, name)], maker)
