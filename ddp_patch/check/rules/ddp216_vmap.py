"""A batch inside ``vmap`` is refused: below torch's Python functions its gradient would be lost."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_VMAP = ("torch.vmap", "torch.func.vmap", "functorch.vmap")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``vmap`` in files that train."""
    for call in facts.calls(*_VMAP):
        yield Finding(
            call,
            f"{brief(facts, call)} maps over rows below torch's functions",
            "a batch in it is refused with a BatchError, as its gradient would be lost",
            "Write the batched form of the function, which most of torch's have.",
        )


RULE = Rule("DDP216", "vmap", "vmap is refused for batches", find, (World.PLAIN, World.DDP_PATCH))
