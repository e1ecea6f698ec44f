"""Whether a path or a file is of one rank alone: named after it, temporary, or in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ..source import Facts, Kind, Variable, dotted

_RANK = re.compile(r"(?<![a-z])(my|local|global|world)?rank(?![a-z])", re.I)
_MAKES = re.compile(
    r"(tempfile\.(mkdtemp|mkstemp|mktemp|TemporaryDirectory|\w*TemporaryFile)|(io\.)?(BytesIO|StringIO)|os\.getpid|uuid\.uuid[14])$"
)
_PATHS = {"name", "parent", "parents", "stem"}  # of a path or file that is made of another


def is_of_rank(facts: Facts, *nodes: cst.CSTNode | None) -> bool:
    """Tell whether one of these expressions is of each rank's own, by its words and those of its variables."""
    return any(node is not None and _is_per_rank(facts, node, set()) for node in nodes)


def _is_per_rank(facts: Facts, node: cst.CSTNode, seen: set[object]) -> bool:
    if _RANK.search(facts.code(node)):
        return True
    parts = facts.tree.within(node, cst.Name, cst.Attribute, cst.Subscript, cst.Call)
    if any(Kind.RANK in facts.kinds(part) for part in parts):
        return True
    if any(isinstance(part, cst.Call) and _MAKES.match(facts.name(part.func) or "") for part in parts):
        return True
    for variable in [each for part in parts if (each := _variable(facts, part)) is not None and each not in seen]:
        seen.add(variable)
        per_rank = [_is_per_rank(facts, value.node, seen) for value in variable.values]
        if per_rank and (all(per_rank) if variable.parameter else any(per_rank)):
            return True
    return any(_is_per_rank(facts, value, seen) for part in parts for value in _returned(facts, part, seen))


def _variable(facts: Facts, part: cst.CSTNode) -> Variable | None:
    """``args.out`` says nothing about ``args``, but ``folder.name`` and ``folder.joinpath(...)`` about ``folder``."""
    outer = facts.tree.parents.get(part)
    if isinstance(outer, cst.Arg) and outer.keyword is part:
        return None
    if isinstance(outer, cst.Attribute):
        called = facts.tree.parents.get(outer)
        is_path = outer.attr.value in _PATHS or (isinstance(called, cst.Call) and called.func is outer)
        if outer.attr is part or not is_path:
            return None
    name = dotted(part)
    return facts.scopes.find(name, facts.scopes.of(part)) if name is not None else None


def _returned(facts: Facts, part: cst.CSTNode, seen: set[object]) -> Iterator[cst.BaseExpression]:
    """Give what a function of this file gives back."""
    name = dotted(part.func) if isinstance(part, cst.Call) else None
    for function in facts.scopes.functions.get((name or "").removeprefix("self."), ()):
        if function not in seen:
            seen.add(function)
            returns = facts.tree.within(function.body, cst.Return)
            yield from (each.value for each in returns if each.value is not None)
