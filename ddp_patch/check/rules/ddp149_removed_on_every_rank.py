"""Of N ranks that remove or move a file, all but one do not find it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief, is_true
from ..own_files import is_of_rank
from ..rule import Finding, Rule

_ACTS = (
    "os.remove",
    "os.unlink",
    "os.rename",
    "os.rmdir",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
    "shutil.copy",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find calls that remove, move or copy files under no test on the rank."""
    for call in facts.calls(*_ACTS):
        if (
            facts.on_some_ranks(call)
            or facts.tree.enclosing(call, cst.Try)
            or is_true(facts.argument(call, "ignore_errors"))
            or is_of_rank(facts, *(argument.value for argument in call.args[:2]))
        ):
            continue
        copies = "copy" in (facts.name(call.func) or "")
        why = (
            "every rank copies, from a file that another one may still be writing"
            if copies
            else ("one rank does it, and the others find nothing: FileNotFoundError")
        )
        yield Finding(
            call,
            f"{brief(facts, call)} is under no test on the rank",
            why,
            "Write it under if dist.get_rank() == 0:, and dist.barrier() behind it.",
        )


RULE = Rule("DDP149", "removed-on-every-rank", "Files are removed, moved or copied by every rank", find)
