"""A loader takes a sampler or ``shuffle=True``, not both."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import is_true
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find loaders that are given both, however the script branches."""
    for call in facts.calls("torch.utils.data.DataLoader"):
        sampler = _argument(facts, call, "sampler", 3)
        has_sampler = sampler is not None and not (isinstance(sampler, cst.Name) and sampler.value == "None")
        if has_sampler and not isinstance(sampler, cst.IfExp) and is_true(_argument(facts, call, "shuffle", 2)):
            yield Finding(
                call,
                f"DataLoader(sampler={facts.code(sampler)}, shuffle=True)",  # type: ignore[arg-type]  # it is given
                "a loader takes one of them: torch raises a ValueError here",
                "Write shuffle=True where the sampler is made (DistributedSampler's default), and not here.",
            )


def _argument(facts: Facts, call: cst.Call, keyword: str, position: int) -> cst.BaseExpression | None:
    """Find an argument that is written in the call, or that a dict which it unpacks holds in any case."""
    found = facts.argument(call, keyword, position)
    is_written = any(argument.value is found for argument in call.args)
    return found if is_written else facts.keywords.certain(call).get(keyword)


RULE = Rule(
    "DDP134",
    "sampler-and-shuffle",
    "A loader is given a sampler and shuffle=True",
    find,
    (*World,),
    training=False,
    breaks_alone=True,
)
