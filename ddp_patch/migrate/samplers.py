"""Distributed samplers: the order that one process takes instead, and what is left of them once loaders have none."""

from __future__ import annotations

import ast

from .bindings import Key
from .evaluation import UNKNOWN
from .plain_pass import Pass
from .rules.epochs import AGAIN
from .tree import dotted, keyword, tail

_SIMPLE = (  # what means the same some lines below
    *(ast.Name, ast.Attribute, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp),
    *(ast.expr_context, ast.boolop, ast.unaryop, ast.cmpop),
)
_ORDERS = {"RandomSampler": "True", "SequentialSampler": "False"}  # of all rows, if they are given nothing else


class Samplers(Pass):
    """What a name holds where a loader is made, and whether anything still needs it."""

    def order(self, loader: ast.Call, sampler: ast.expr) -> str:
        """Write the ``shuffle`` of a loader in its sampler's place; nothing if that cannot be told."""
        if not self._is_dealt(sampler):
            return ""
        return self._order(sampler, loader) or ""

    def _is_dealt(self, sampler: ast.expr) -> bool:
        made = ast.walk(sampler) if isinstance(sampler, (ast.Call, ast.IfExp)) else self.bindings.makers(sampler)
        return any(isinstance(c, ast.Call) and tail(c) == "DistributedSampler" for c in made)

    def _order(self, value: ast.expr, loader: ast.Call) -> str | None:
        match value:
            case ast.Call() if tail(value) == "DistributedSampler":
                said = keyword(value, "shuffle", 3)
                return self.script.code(said) if said is not None else "True"
            case ast.Call() if tail(value) in _ORDERS and len(value.args) + len(value.keywords) == 1:
                return _ORDERS[tail(value)]
            case ast.Constant(value=None):
                return self._without(loader)
            case ast.IfExp():
                return self._either(value.test, self._order(value.body, loader), self._order(value.orelse, loader))
            case ast.Name() | ast.Attribute() if (key := self.bindings.key(value)) is not None:
                return self._before(self.script.statement(value), key, loader)
        return None

    def _without(self, loader: ast.Call) -> str | None:
        """Write the ``shuffle`` that a loader has where its sampler is None."""
        shuffle = keyword(loader, "shuffle", 2)
        if shuffle is None:
            return "False"
        if isinstance(shuffle, ast.Constant):
            return self.script.code(shuffle)
        if isinstance(shuffle, ast.Compare) and isinstance(shuffle.ops[0], ast.Is):
            return "True"  # `sampler is None`
        return "True" if isinstance(shuffle, ast.UnaryOp) and isinstance(shuffle.op, ast.Not) else None

    def _either(self, test: ast.expr, a: str | None, b: str | None) -> str | None:
        value = self.constants.value(test) if self.constants.is_ranked(test) else UNKNOWN
        if value is not UNKNOWN:
            return a if value else b
        if a is None or b is None or a == b:
            return a if a == b else None
        if {a, b} != {"True", "False"} or not all(isinstance(n, _SIMPLE) for n in ast.walk(test)):
            return None
        code = self.script.code(test)
        return (
            code if a == "True" else f"not {code}" if isinstance(test, (ast.Name, ast.Attribute)) else f"not ({code})"
        )

    def _before(self, place: ast.AST, key: Key, loader: ast.Call) -> str | None:
        """Follow a name upwards from a statement, to the last one that gives it something."""
        block = self.script.block(place)
        found = self._end(block[: block.index(place)], key, loader)  # type: ignore[arg-type]
        if found is not None:
            return found or None
        outer = self.script.parents[place]
        if isinstance(outer, (ast.If, ast.With, ast.For, ast.While, ast.Try)):
            return self._before(outer, key, loader)
        assigned = [n.value for n in self.script.all(ast.Assign) if any(self.bindings.key(t) == key for t in n.targets)]
        orders = {None if dotted(value) else self._order(value, loader) for value in assigned or self._made(key)}
        return orders.pop() if len(orders) == 1 else None

    def _made(self, key: Key) -> list[ast.Call]:
        groups = self.bindings.groups(key)
        return [c for made, calls in self.bindings.made.items() if self.bindings.root(made) in groups for c in calls]

    def _end(self, block: list[ast.stmt], key: Key, loader: ast.Call) -> str | None:
        """Tell the order at the end of statements: nothing if they give the name nothing, "" if it cannot be told."""
        for statement in reversed(block):
            stored = [n for n in ast.walk(statement) if isinstance(n, (ast.Name, ast.Attribute))
                      and isinstance(n.ctx, ast.Store) and self.bindings.key(n) == key]  # fmt: skip
            if not stored:
                continue
            match statement:
                case ast.Assign(targets=[target]) if target in stored:
                    return self._order(statement.value, loader) or ""
                case ast.If():
                    ways = []
                    for way in (statement.body, statement.orelse):
                        found = self._end(way, key, loader)
                        ways.append(self._before(statement, key, loader) if found is None else found or None)
                    return self._either(statement.test, *ways) or ""
                case ast.With():
                    return self._end(statement.body, key, loader)
            return ""
        return None

    def is_spent(self, call: ast.Call) -> bool:
        """Tell whether a ``set_epoch`` is of a sampler that the loaders no longer have."""
        if not isinstance(call.func, ast.Attribute):
            return False
        if AGAIN.encode() in self.script.rest_of_line(self.script.statement(call)):
            return True  # a migration wrote it
        owner = call.func.value
        made = self.bindings.makers(owner)
        if not made and isinstance(owner, ast.Attribute) and owner.attr == "sampler":
            made = self.bindings.makers(owner.value)
            return bool(made) and all(tail(c) == "DataLoader" and not _has_sampler(c) for c in made)
        if made and all(tail(c) == "DataLoader" for c in made):
            return True  # Accelerate's have it, torch's do not
        return bool(made) and all(tail(c) == "DistributedSampler" for c in made) and self.is_only(owner, "set_epoch")

    def is_only(self, sampler: ast.expr, method: str = "") -> bool:
        """Tell whether a sampler is only passed on, asked for, and this method of it called."""
        key = self.bindings.key(sampler)
        groups = {*self.bindings.groups(key)} if key is not None else set()
        for node in self.script.all(ast.Name, ast.Attribute):
            other = self.bindings.key(node) if isinstance(node.ctx, ast.Load) else None
            if (
                other is not None
                and not groups.isdisjoint(self.bindings.groups(other))
                and not self._is_idle(node, method)
            ):
                return False
        return bool(groups)

    def _is_idle(self, node: ast.AST, method: str) -> bool:
        outer = self.script.parents[node]
        match outer:
            case ast.Attribute():
                return outer.attr == method
            case ast.Compare():
                return isinstance(outer.comparators[0], ast.Constant) and outer.comparators[0].value is None
            case ast.If() | ast.Assign():
                return True
            case ast.keyword():
                outer = self.script.parents[outer]
        return isinstance(outer, ast.Call) and outer.func is not node and self.bindings.callee(outer) is not None


def _has_sampler(loader: ast.Call) -> bool:
    return len(loader.args) > 3 or any(k.arg in ("sampler", "batch_sampler", None) for k in loader.keywords)
