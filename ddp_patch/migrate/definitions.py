"""Functions and classes of a script, and which call runs which."""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from .neighbours import find_class
from .parts import Part
from .script import Script
from .tree import Function, dotted


class Definitions:
    """What a script defines."""

    def __init__(self, script: Script, folder: Path | None = None) -> None:
        self.script, self.folder = script, folder
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._by_part: dict[tuple[Part, str], Function | ast.ClassDef] = {}  # what each file defines
        for node in script.all(ast.FunctionDef, ast.AsyncFunctionDef):
            if not isinstance(script.parents[node], ast.ClassDef):
                self.functions.setdefault(node.name, node)
                self._by_part.setdefault((script.part(node), node.name), node)
        for node in script.all(ast.ClassDef):
            self.classes.setdefault(node.name, node)
            self._by_part.setdefault((script.part(node), node.name), node)

    def origins(self, node: ast.AST) -> list[ast.Call]:
        """List the calls whose results a name holds; Bindings does."""
        raise NotImplementedError

    def makers(self, node: ast.AST) -> list[ast.Call]:
        """List the calls that made what a name holds, without those of functions of this script, which only give it."""
        calls = ((call, self.callee(call)) for call in self.origins(node))
        return [call for call, function in calls if function is None or function.name == "__init__"]

    @cached_property
    def callers(self) -> dict[Function, list[ast.Call]]:
        """Where each function of the script is called."""
        found: dict[Function, list[ast.Call]] = {}
        for call in self.script.calls():
            function = self.callee(call)
            if function is not None:
                found.setdefault(function, []).append(call)
        return found

    def callee(self, call: ast.Call) -> Function | None:
        """Find the function of this script that a call runs: a function, a method of ``self``, a constructor."""
        named = self._named(call.func)
        if isinstance(named, ast.ClassDef):
            return self.method(named, "__init__")
        if named is not None or isinstance(call.func, ast.Name):
            return named
        if isinstance(call.func, ast.Attribute):
            owner = call.func.value
            if isinstance(owner, ast.Name) and owner.id == "self":
                inside = self.class_of(call)
                return self.method(inside, call.func.attr) if inside is not None else None
            made = self.class_called(owner) if isinstance(owner, ast.Call) else self.class_made(owner)
            if made is not None:
                return self.method(made, call.func.attr)
        return None

    def _named(self, node: ast.expr) -> Function | ast.ClassDef | None:
        """Find what a name at the top of a file defines, here or in a file that is migrated with this one."""
        name, part = dotted(node), self.script.part(node)
        if isinstance(node, ast.Name) and (part, name) in self._by_part:
            return self._by_part[part, name]
        other, name = part.refer(name)
        return self._by_part.get((other, name)) if other is not part else None

    def class_called(self, call: ast.Call) -> ast.ClassDef | None:
        """Find the class that a call makes an instance of."""
        found = self._named(call.func)
        return found if isinstance(found, ast.ClassDef) else None

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Find the class that a node stands in."""
        return next((n for n in self.script.above(node) if isinstance(n, ast.ClassDef)), None)

    def method(self, owner: ast.ClassDef, name: str) -> Function | None:
        """Find a method that a class defines."""
        return next(
            (n for n in owner.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == name), None
        )

    def class_made(self, node: ast.AST) -> ast.ClassDef | None:
        """Find the class of this script that a name holds an instance of."""
        return next((made for call in self.origins(node) if (made := self.class_called(call)) is not None), None)

    def class_beside(self, node: ast.AST) -> ast.ClassDef | None:
        """Find the class, of a file beside this one, that a name holds an instance of."""
        names = (c.func.id for c in self.origins(node) if isinstance(c.func, ast.Name))
        found = (find_class(self.script.tree, self.folder, name) for name in names)
        return next((made for made in found if made is not None), None)

    def arguments(self, call: ast.Call, function: Function) -> dict[str, ast.expr]:
        """Tell which parameter gets which argument."""
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(self.script.parents[function], ast.ClassDef) and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        arguments: dict[str, ast.expr] = {}
        for name, value in zip(names, call.args, strict=False):
            if isinstance(value, ast.Starred):
                break
            arguments[name] = value
        arguments |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        return arguments
