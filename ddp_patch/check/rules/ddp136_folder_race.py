"""Two ranks see that a folder is missing, both make it, and the second one fails."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief, is_true
from ..own_files import is_of_rank
from ..rule import Finding, Rule

_MAKES = ("os.makedirs", "os.mkdir")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``if not exists(x): os.makedirs(x)`` and bare ``os.mkdir(x)``, without ``exist_ok``."""
    for call in facts.tree.all(cst.Call):
        if facts.name(call.func) not in _MAKES and not _is_path(facts, call):
            continue
        if (
            is_true(facts.argument(call, "exist_ok"))
            or facts.tree.enclosing(call, cst.Try)
            or facts.on_some_ranks(call)
            or not facts.is_run(call)
            or is_of_rank(facts, _folder(facts, call))
        ):
            continue
        yield Finding(
            call,
            f"{brief(facts, call)} fails where the folder is there",
            "several ranks find it missing and make it; all but one raise FileExistsError",
            "Write os.makedirs(..., exist_ok=True).",
        )


def _folder(facts: Facts, call: cst.Call) -> cst.BaseExpression | None:
    if facts.name(call.func) not in _MAKES and isinstance(call.func, cst.Attribute):
        return call.func.value
    return facts.argument(call, "name", 0) or facts.argument(call, "path")


def _is_path(facts: Facts, call: cst.Call) -> bool:
    """``Path(...).mkdir()``: a method that so few classes have that its keyword tells."""
    method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "mkdir"
    return method and "pathlib" in facts.modules and facts.argument(call, "parents") is not None


RULE = Rule("DDP136", "folder-race", "A folder is made without exist_ok", find, of_plain_parts=True)
