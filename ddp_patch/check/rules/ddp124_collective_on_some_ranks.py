"""A collective that only some ranks call is waited in for ever."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World

_COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in (
        "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast", "broadcast_object_list",
        "reduce", "reduce_scatter", "gather", "gather_object", "scatter", "all_to_all",
    )
)  # fmt: skip


def find(facts: Facts) -> Iterator[Finding]:
    """Find collectives under a test on the rank, where no other branch has the same one."""
    guarded = [(call, facts.guards.of(call)) for call in facts.calls(*_COLLECTIVES)]
    for call, tests in guarded:
        twins = [other for other, others in guarded if others and facts.name(other.func) == facts.name(call.func)]
        if tests and len(twins) == 1 and facts.argument(call, "group") is None:
            yield Finding(
                call,
                f"{brief(facts, call)} is under {facts.named_test(tests[0])}",
                "the ranks that call it wait for those that do not",
                "Write it where every rank comes by, and use its result under the test.",
            )


RULE = Rule(
    "DDP124", "collective-on-some-ranks", "A collective is under a test on the rank", find, (World.DDP,), training=False
)
