"""A checkpoint is written by all processes at once, into one file."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..own_files import is_of_rank
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.save`` under no test on the rank, other than into a file of each rank's own."""
    for call in facts.calls("torch.save"):
        if (
            call.args
            and facts.is_run(call)
            and not facts.on_some_ranks(call)
            and not is_of_rank(facts, facts.argument(call, "f", 1))
        ):
            yield Finding(
                call,
                f"torch.save({brief(facts, call.args[0].value, 40)}, ...) is under no test on the rank",
                "every rank writes this file at once, and one that reads it may find half of it",
                "Write if dist.get_rank() == 0: torch.save(...)",
            )


RULE = Rule("DDP106", "save-on-every-rank", "torch.save is under no test on the rank", find, of_plain_parts=True)
