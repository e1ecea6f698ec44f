"""Tell what kind of thing each variable of a script holds, from constructors, calls and use; nothing is run.

A variable has the kinds of all expressions that are ever assigned to it, in whatever order.
"""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from . import kinds
from .evaluation import Evaluation, Kinds
from .kinds import OF_ROWS, Kind
from .names import dotted, qualified
from .scopes import Scopes, Variable, parameters
from .tree import Tree

__all__ = ["Inference", "Kinds"]

_ROUNDS = 6  # kinds travel one assignment per round where the text is against them; chains are short


class Inference(Evaluation):
    """Answers ``kinds(expression)`` for one file."""

    def __init__(self, tree: Tree, scopes: Scopes, imported: Mapping[str, str]) -> None:
        super().__init__(tree, scopes, imported)
        self._reduced: set[Variable] = set()
        self._spawn()
        self._use()
        self._settle()
        reduced = [variable for variable in scopes.all() if Kind.REDUCED in variable.kinds]
        if reduced:  # what was worked out from them before this was known is worked out again
            for variable in scopes.all():
                variable.kinds -= OF_ROWS
            self._use()
            self._reduced = set(reduced)
            self._settle()

    def _spawn(self) -> None:
        """``mp.spawn(train, args=(a,))`` calls ``train(i, a)``: i is the rank, whatever it is called."""
        for call in (call for name in kinds.SPAWNS for call in self._scopes.calls.get(name, ())):
            target = next(
                (each.value for each in call.args if each.keyword is None or each.keyword.value == "fn"), None
            )
            if not (qualified(call.func, self._imported) or "").startswith("torch.multiprocessing."):
                continue
            for function in self._scopes.functions.get((dotted(target) or "").rpartition(".")[2], ()):
                taken = [each for each in parameters(function) if each.name.value not in ("self", "cls")]
                if taken:
                    self._scopes.inside(function).variable(taken[0].name.value).kinds.add(Kind.RANK)

    def _use(self) -> None:
        """What only one kind of thing has shows what a variable is: ``x.parameters()``, ``x.backward()``."""
        for node in self._tree.all(cst.Attribute):
            kind = kinds.having(node.attr.value)
            name = dotted(node.value) if kind is not None else None
            if (
                kind is not None
                and name is not None
                and name.partition(".")[0] not in self._imported
                and name != "self"
            ):
                scope = self._scopes.of(node)
                variable = self._scopes.find(name, scope) or self._scopes.owner(name, scope).variable(name)
                variable.kinds.add(kind)

    def _settle(self) -> None:
        variables = list(self._scopes.all())
        for round_ in range(_ROUNDS):
            changed = False
            self._memo.clear()
            self._ranks = {each.name for each in variables if Kind.RANK in each.kinds and "." in each.name}
            for variable in variables:
                before = len(variable.kinds)
                for value in variable.values:
                    variable.kinds |= self._value_kinds(value)
                if round_ == 1 and not variable.kinds:
                    variable.kinds |= kinds.named(variable.name)
                if variable in self._reduced:
                    variable.kinds -= OF_ROWS
                changed |= len(variable.kinds) > before
            changed |= self._fill()
            if not changed and round_ > 1:
                break
        self._memo.clear()

    def _fill(self) -> bool:
        """Meters and lists are of rows when rows are put into them; what is all-reduced in place no longer is."""
        changed = False
        for call in self._tree.all(cst.Call):
            scope = None
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in (
                "append",
                "update",
                "extend",
                "add_",
                "add",
            ):
                holder = dotted(call.func.value)
                filled = {Kind.LOCAL} if any(self.kinds(argument.value) & OF_ROWS for argument in call.args) else set()
            elif isinstance(call.func, cst.Attribute) and kinds.reduces(f".{call.func.attr.value}") and not call.args:
                holder, filled = dotted(call.func.value), {Kind.REDUCED}  # a meter's own all_reduce()
            elif self._in_place(call):
                holder, filled = dotted(call.args[0].value), {Kind.REDUCED}
            else:
                continue
            if holder is not None and filled:
                scope = self._scopes.of(call)
                variable = self._scopes.find(holder, scope)
                if variable in self._reduced:
                    continue
                if variable is not None and not filled <= variable.kinds:
                    variable.kinds |= filled
                    changed = True
        return changed

    def _in_place(self, call: cst.Call) -> bool:
        """``dist.all_reduce(x)`` as a statement of its own changes ``x``."""
        name = qualified(call.func, self._imported)
        return (
            name is not None
            and bool(call.args)
            and kinds.reduces(name)
            and isinstance(self._tree.parents.get(call), cst.Expr)
        )
