"""Which variables a file has, and every expression that is ever assigned to each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from .kinds import Kind
from .names import dotted
from .tree import Tree

Definition = cst.FunctionDef | cst.ClassDef


@dataclass(eq=False)
class Value:
    """One expression that a variable is given."""

    node: cst.BaseExpression
    scope: Scope  # in which the expression stands
    unpacked: tuple[int, ...] = ()  # which item of it, and of that: (1, 0) is x in ``for i, (x, y) in ...``
    looped: bool = False  # an item of it, in a for loop or comprehension
    statement: cst.CSTNode | None = None  # the assignment, loop, call or parameter that does it


@dataclass(eq=False)
class Variable:
    """A name, or a chain of attributes such as ``self.model`` and ``args.lr``, in one scope."""

    name: str
    scope: Scope
    values: list[Value] = field(default_factory=list)
    kinds: set[Kind] = field(default_factory=set)
    parameter: bool = False


@dataclass(eq=False)
class Scope:
    """A module, class or function and its variables."""

    node: Definition | None  # None for the module: all cells of a notebook have one
    parent: Scope | None = None
    variables: dict[str, Variable] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def variable(self, name: str) -> Variable:
        """Find a variable of this very scope, made if there is none."""
        return self.variables.setdefault(name, Variable(name, self))


class Scopes:
    """All scopes of a file."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.module = Scope(None)
        self.functions: dict[str, list[cst.FunctionDef]] = defaultdict(list)
        self.classes: dict[str, cst.ClassDef] = {}
        self.calls: dict[str, list[cst.Call]] = defaultdict(list)  # by the last part of what is called
        for call in tree.all(cst.Call):
            self.calls[called(call)].append(call)
        self._of: dict[cst.CSTNode, Scope] = {}
        for node in tree.all(cst.FunctionDef, cst.ClassDef):
            if isinstance(node, cst.FunctionDef):
                self._of[node] = Scope(node, self.of(node))
                self.functions[node.name.value].append(node)
            elif isinstance(node, cst.ClassDef):
                self._of[node] = Scope(node, self.of(node))
                self.classes[node.name.value] = node
        for outer in tree.all(cst.Global):
            self.of(outer).outer.update(item.name.value for item in outer.names)
        for variable, value in _assignments(tree, self):
            variable.values.append(value)

    def of(self, node: cst.CSTNode) -> Scope:
        """Find the scope that a node stands in. A function's own node stands outside of it."""
        return next((self._of[outer] for outer in self.tree.ancestors(node) if outer in self._of), self.module)

    def inside(self, definition: Definition) -> Scope:
        """Find the scope that a function or class makes."""
        return self._of[definition]

    def owner(self, name: str, scope: Scope) -> Scope:
        """Find the scope that holds a variable of this name when it is assigned in ``scope``."""
        root = name.partition(".")[0]
        if root == "self" and "." in name:
            inner: Scope | None = scope
            while inner is not None and not isinstance(inner.node, cst.ClassDef):
                inner = inner.parent
            return inner or scope
        return self.module if root in scope.outer else scope

    def find(self, name: str, scope: Scope) -> Variable | None:
        """Find the variable that a name means in a scope, as Python looks it up."""
        found = self.owner(name, scope).variables.get(name)
        outer = scope.parent
        while found is None and outer is not None:
            if not isinstance(outer.node, cst.ClassDef):
                found = outer.variables.get(name)
            outer = outer.parent
        return found

    def all(self) -> Iterator[Variable]:
        """Go through every variable of the file."""
        for scope in (self.module, *self._of.values()):
            yield from list(scope.variables.values())


def called(call: cst.Call) -> str:
    """Name what is called by its last part: ``step`` for ``self.optimizer.step()``."""
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value
    return dotted(call.func) or ""


def targets(node: cst.CSTNode, path: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name what an assignment target binds, with the place of each in what is unpacked."""
    if isinstance(node, (cst.Tuple, cst.List)):
        for index, element in enumerate(node.elements):
            yield from targets(element.value, (*path, index))
    elif isinstance(node, cst.Subscript):
        yield from targets(node.value, path)
    else:
        name = dotted(node)
        if name is not None:
            yield name, path


def _assignments(tree: Tree, scopes: Scopes) -> Iterator[tuple[Variable, Value]]:
    def bound(target: cst.CSTNode, value: Value) -> Iterator[tuple[Variable, Value]]:
        for name, path in targets(target):
            holder = scopes.owner(name, value.scope).variable(name)
            yield holder, Value(value.node, value.scope, path, value.looped, value.statement)

    kinds = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.CompFor, cst.WithItem)
    for node in tree.all(*kinds):
        scope = scopes.of(node)
        if isinstance(node, cst.Assign):
            for each in node.targets:
                yield from bound(each.target, Value(node.value, scope, statement=node))
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)) and node.value is not None:
            yield from bound(node.target, Value(node.value, scope, statement=node))
        elif isinstance(node, (cst.For, cst.CompFor)):
            yield from bound(node.target, Value(node.iter, scope, looped=True, statement=node))
        elif isinstance(node, cst.WithItem) and node.asname is not None:
            yield from bound(node.asname.name, Value(node.item, scope, statement=node))
    for function in tree.all(cst.FunctionDef):
        inner = scopes.inside(function)
        for parameter in parameters(function):
            inner.variable(parameter.name.value).parameter = True
            if parameter.default is not None:
                yield (
                    inner.variable(parameter.name.value),
                    Value(parameter.default, scopes.of(function), statement=function),
                )
    for call in tree.all(cst.Call):
        yield from _passed(call, scopes)


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """List a function's parameters, without ``*args`` and ``**kwargs``."""
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def _passed(call: cst.Call, scopes: Scopes) -> Iterator[tuple[Variable, Value]]:
    """Bind a call's arguments to the parameters of the function of this file that it calls."""
    name = dotted(call.func)
    if name is None:
        return
    last = name.rpartition(".")[2]
    if last in scopes.classes and last not in scopes.functions:
        body = scopes.classes[last].body.body
        found = [item for item in body if isinstance(item, cst.FunctionDef) and item.name.value == "__init__"]
        method = True
    else:
        found = scopes.functions.get(last, [])
        method = "." in name and name.partition(".")[0] != last
    if len(found) != 1 or (method and last not in scopes.classes and not name.startswith("self.")):
        return
    listed = parameters(found[0])
    if listed and listed[0].name.value in ("self", "cls"):
        listed = listed[1:]
    names = {parameter.name.value for parameter in listed}
    inner, scope = scopes.inside(found[0]), scopes.of(call)
    for index, argument in enumerate(call.args):
        if argument.star:
            return
        keyword = argument.keyword.value if argument.keyword is not None else None
        if keyword is None and index < len(listed):
            keyword = listed[index].name.value
        if keyword in names:
            yield inner.variable(str(keyword)), Value(argument.value, scope, statement=call)
