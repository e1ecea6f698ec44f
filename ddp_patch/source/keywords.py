"""What a call is given by ``**kwargs``: the dict is followed to where the script fills it.

``kwargs = {"num_workers": 1} if cuda else {}``, ``kwargs.update(shuffle=True)``, ``kwargs["pin_memory"] = True``.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .names import dotted
from .scopes import Scope, Scopes, Value, Variable, called
from .tree import Tree

FILLS = ("update", "setdefault")


class Keywords:
    """Answers ``of(call)``: the keywords of all dicts that a call unpacks."""

    def __init__(self, tree: Tree, scopes: Scopes) -> None:
        self._tree, self._scopes = tree, scopes
        self._cached: dict[cst.Call, tuple[dict[str, cst.BaseExpression], bool]] = {}

    def of(self, call: cst.Call) -> dict[str, cst.BaseExpression]:
        """Give what each keyword may be, where it is written; the first value of one that is written twice."""
        return self._of(call)[0]

    def are_known(self, call: cst.Call) -> bool:
        """Tell whether all that a call unpacks could be followed."""
        return self._of(call)[1]

    def _of(self, call: cst.Call) -> tuple[dict[str, cst.BaseExpression], bool]:
        if call not in self._cached:
            found: dict[str, cst.BaseExpression] = {}
            complete = True
            for argument in call.args:
                if argument.star == "*":
                    complete = False
                elif argument.star:
                    complete &= self._read(argument.value, self._scopes.of(call), found, set())
            self._cached[call] = found, complete
        return self._cached[call]

    def _read(
        self, node: cst.BaseExpression, scope: Scope, found: dict[str, cst.BaseExpression], seen: set[Variable]
    ) -> bool:
        """Add the keys of a dict; tells whether these are all."""
        if isinstance(node, cst.Dict):
            elements = [self._element(element, scope, found, seen) for element in node.elements]
            return all(elements)
        if isinstance(node, cst.IfExp):
            return self._both(node.body, node.orelse, scope, found, seen)
        if isinstance(node, (cst.BooleanOperation, cst.BinaryOperation)):  # kwargs or {}, first | second
            return self._both(node.left, node.right, scope, found, seen)
        if isinstance(node, cst.Call) and called(node) in ("dict", "copy", "deepcopy"):
            return self._made(node, scope, found, seen)
        name = dotted(node)
        variable = self._scopes.find(name, scope) if name is not None else None
        if variable is None or not variable.values:
            return isinstance(node, cst.Name) and node.value == "None"
        if variable in seen:
            return True
        seen.add(variable)
        complete = not variable.parameter
        for value in variable.values:
            complete &= self._assigned(value, variable, found, seen)
        for call in self._filling(variable):
            complete &= self._made(call, self._scopes.of(call), found, seen)
        return complete

    def _both(
        self,
        one: cst.BaseExpression,
        other: cst.BaseExpression,
        scope: Scope,
        found: dict[str, cst.BaseExpression],
        seen: set[Variable],
    ) -> bool:
        complete = self._read(one, scope, found, seen)
        return self._read(other, scope, found, seen) and complete

    def _element(
        self,
        element: cst.BaseDictElement,
        scope: Scope,
        found: dict[str, cst.BaseExpression],
        seen: set[Variable],
    ) -> bool:
        if isinstance(element, cst.StarredDictElement):
            return self._read(element.value, scope, found, seen)
        key = text_of(element.key) if isinstance(element, cst.DictElement) else None
        if key is not None:
            found.setdefault(key, element.value)
        return key is not None

    def _made(self, call: cst.Call, scope: Scope, found: dict[str, cst.BaseExpression], seen: set[Variable]) -> bool:
        """``dict(a, b=1)``, ``a.copy()``, ``a.update(b, c=2)``, ``a.setdefault("d", 3)``."""
        name, arguments = called(call), call.args
        if name == "setdefault":
            if len(arguments) > 1 and (key := text_of(arguments[0].value)) is not None:
                found.setdefault(key, arguments[1].value)
            return True
        complete = True
        if name == "copy" and isinstance(call.func, cst.Attribute) and not arguments:
            complete = self._read(call.func.value, scope, found, seen)
        for argument in arguments:
            if argument.keyword is not None:
                found.setdefault(argument.keyword.value, argument.value)
            else:
                complete &= self._read(argument.value, scope, found, seen)
        return complete

    def _assigned(
        self, value: Value, variable: Variable, found: dict[str, cst.BaseExpression], seen: set[Variable]
    ) -> bool:
        statement = value.statement
        targets = [each.target for each in statement.targets] if isinstance(statement, cst.Assign) else []
        keyed = [each for each in targets if isinstance(each, cst.Subscript) and dotted(each.value) == variable.name]
        for target in keyed:
            index = target.slice[0].slice
            if isinstance(index, cst.Index) and (key := text_of(index.value)) is not None:
                found.setdefault(key, value.node)
        if keyed:
            return True
        if value.unpacked or value.looped:
            return False
        return self._read(value.node, value.scope, found, seen)

    def _filling(self, variable: Variable) -> Iterator[cst.Call]:
        for name in FILLS:
            for call in self._scopes.calls.get(name, ()):
                if not isinstance(call.func, cst.Attribute) or dotted(call.func.value) != variable.name:
                    continue
                if self._scopes.find(variable.name, self._scopes.of(call)) is variable:
                    yield call


def text_of(node: cst.BaseExpression) -> str | None:
    """Give the text of a string literal; None for anything else."""
    value = node.evaluated_value if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)) else None
    return value if isinstance(value, str) else None
