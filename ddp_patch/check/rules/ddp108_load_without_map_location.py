"""A checkpoint goes back to the device it was saved from: for all ranks, rank 0's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..inference_only import infers
from ..literals import brief
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.load`` without ``map_location`` whose result goes into ``load_state_dict``."""
    for call in facts.calls("torch.load"):
        if (
            facts.argument(call, "map_location", 1) is not None
            or facts.has_stars(call)
            or infers(facts, call)
            or not facts.is_run(call)
            or "bytes" in facts.code(call).lower()
        ):
            continue
        if _is_checkpoint(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} has no map_location",
                "every rank puts the file's tensors on the device they were saved from, so all of them on cuda:0",
                'Write torch.load(..., map_location="cpu"), or this rank\'s device.',
            )


def _is_checkpoint(facts: Facts, call: cst.Call) -> bool:
    for loading in facts.methods("load_state_dict"):
        if loading.args and (
            facts.tree.inside(call, loading.args[0].value)
            or (facts.kinds(loading.args[0].value) & {Kind.CHECKPOINT} and _comes_from(facts, call, loading))
        ):
            return True
    return False


def _comes_from(facts: Facts, call: cst.Call, loading: cst.Call) -> bool:
    name = facts.assigned(call)
    return name is not None and name.partition(".")[0] in facts.code(loading.args[0].value)


RULE = Rule(
    "DDP108", "load-without-map-location", "torch.load of a checkpoint has no map_location", find, of_plain_parts=True
)
