"""Which keywords a call certainly gets by ``**kwargs``, however the script branches before it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from .keywords import FILLS, Keywords, text_of
from .names import dotted
from .scopes import Scope, Variable, called

Entries = dict[str, cst.BaseExpression]
_EMPTIES = ("pop", "popitem", "clear")


class CertainKeywords(Keywords):
    """Answers ``certain(call)`` as well, by the statements that each run of the script comes by."""

    def certain(self, call: cst.Call) -> Entries:
        """Give the keywords of the dicts that a call unpacks that are there in any case, with their values."""
        found: Entries = {}
        for argument in call.args:
            if argument.star == "**":
                found |= self._sure(argument.value, self._scopes.of(call), call, frozenset())
        return found

    def _sure(self, node: cst.BaseExpression, scope: Scope, at: cst.CSTNode, seen: frozenset[Variable]) -> Entries:
        """Give the certain keys of a dict where ``at`` stands."""
        if isinstance(node, cst.Dict):
            found: Entries = {}
            for element in node.elements:
                if isinstance(element, cst.StarredDictElement):
                    found = self._over(found, element.value, scope, at, seen)
                elif isinstance(element, cst.DictElement) and (key := text_of(element.key)) is not None:
                    found[key] = element.value
            return found
        if isinstance(node, cst.BinaryOperation):  # first | second
            return self._over(self._sure(node.left, scope, at, seen), node.right, scope, at, seen)
        if isinstance(node, cst.Call):
            name, made_of = called(node), node.func
            if name == "copy" and not node.args and isinstance(made_of, cst.Attribute):
                return self._sure(made_of.value, scope, at, seen)
            return self._filled({}, node, scope, at, seen) if name in ("dict", "copy", "deepcopy") else {}
        named = dotted(node)
        variable = self._scopes.find(named, scope) if named is not None else None
        if variable is None or variable.parameter or variable in seen:
            return {}
        return self._after_all(variable, at, seen | {variable})

    def _filled(
        self, found: Entries, call: cst.Call, scope: Scope, at: cst.CSTNode, seen: frozenset[Variable]
    ) -> Entries:
        """``dict(a, b=1)``, ``kwargs.update(a, b=1)``."""
        for argument in call.args:
            if argument.keyword is not None:
                found = found | {argument.keyword.value: argument.value}
            else:
                found = self._over(found, argument.value, scope, at, seen)
        return found

    def _over(
        self, found: Entries, node: cst.BaseExpression, scope: Scope, at: cst.CSTNode, seen: frozenset[Variable]
    ) -> Entries:
        """Put one dict over another: what the upper one may hold is no longer the lower one's."""
        return self._without(found, node, scope) | self._sure(node, scope, at, seen)

    def _without(self, found: Entries, node: cst.BaseExpression, scope: Scope) -> Entries:
        possible: Entries = {}
        complete = self._read(node, scope, possible, set())
        return {key: value for key, value in found.items() if complete and key not in possible}

    def _after_all(self, variable: Variable, at: cst.CSTNode, seen: frozenset[Variable]) -> Entries:
        """Follow what is done to a dict, in the text's order, until ``at``."""
        found: Entries = {}
        elsewhere = self._scopes.of(at) is not variable.scope
        for node in self._changes(variable):
            is_later = self._tree.order[node] >= self._tree.order[at]
            if node is at or (is_later and not elsewhere and not self._is_repeated(node, at)):
                continue
            after = self._changed(found, node, variable, seen)
            if is_later or not self._comes_by(node, at):  # perhaps: what is the same with and without it
                after = {key: value for key, value in found.items() if after.get(key) is value}
            found = after
        return found

    def _changes(self, variable: Variable) -> list[cst.CSTNode]:
        changes = {value.statement for value in variable.values if value.statement is not None}
        changes |= {node for node in self._tree.all(cst.Del) if variable.name in map(dotted, _bases(node.target))}
        for name in (*FILLS, *_EMPTIES):
            for call in self._scopes.calls.get(name, ()):
                if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == variable.name:
                    changes.add(call)
        relevant = [node for node in changes if self._scopes.find(variable.name, self._scopes.of(node)) is variable]
        return sorted(relevant, key=self._tree.order.__getitem__)

    def _changed(self, found: Entries, node: cst.CSTNode, variable: Variable, seen: frozenset[Variable]) -> Entries:
        scope = self._scopes.of(node)
        if isinstance(node, cst.Call):
            key = text_of(node.args[0].value) if node.args else None
            if called(node) == "update":
                return self._filled(found, node, scope, node, seen)
            if called(node) == "setdefault":
                return found
            return {each: value for each, value in found.items() if key not in (each, None)}
        if isinstance(node, cst.AugAssign) and dotted(node.target) == variable.name:
            return self._over(found, node.value, scope, node, seen)
        if isinstance(node, (cst.Assign, cst.AnnAssign)) and node.value is not None:
            targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
            for target in targets:
                if dotted(target) == variable.name:
                    return self._sure(node.value, scope, node, seen)
                if isinstance(target, cst.Subscript) and dotted(target.value) == variable.name:
                    key = _key(target)
                    return found | {key: node.value} if key is not None else {}
        if isinstance(node, cst.Del):
            keys = {_key(part) for part in self._tree.within(node, cst.Subscript)}
            return {each: value for each, value in found.items() if each not in keys and None not in keys}
        return {}

    def _comes_by(self, node: cst.CSTNode, at: cst.CSTNode) -> bool:
        """A statement's block is around ``at``: who comes to ``at`` has come by it."""
        block = self._tree.enclosing(node, cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)
        between = (cst.IfExp, cst.BooleanOperation)
        return block is not None and self._tree.inside(at, block) and self._tree.enclosing(node, *between) is None

    def _is_repeated(self, node: cst.CSTNode, at: cst.CSTNode) -> bool:
        loops = [outer for outer in self._tree.ancestors(at) if isinstance(outer, (cst.For, cst.While))]
        return any(self._tree.inside(node, loop) for loop in loops)


def _bases(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    if isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _bases(element.value)
    else:
        yield node.value if isinstance(node, cst.Subscript) else node


def _key(target: cst.Subscript) -> str | None:
    index = target.slice[0].slice
    return text_of(index.value) if isinstance(index, cst.Index) else None
