"""A forward that prints shows the rows of rank 0; one that writes files runs on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward

_EFFECTS = ("print", "open", "torch.save", "numpy.save", "matplotlib.pyplot.savefig", "torchvision.utils.save_image")


def find(facts: Facts) -> Iterator[Finding]:
    """Find prints and written files in the ``forward`` of a module."""
    for call in facts.calls(*_EFFECTS):
        if in_forward(facts, call):
            prints = facts.name(call.func) == "print"
            yield Finding(
                call,
                f"{brief(facts, call)} in a forward",
                "what it shows is of rank 0's rows" if prints else "this module runs on whole batches, on every rank",
                "Return the value, and show or write it outside of the model.",
            )


RULE = Rule(
    "DDP207", "forward-prints", "A forward prints or writes files", find, (World.PLAIN, World.DDP_PATCH), training=False
)
