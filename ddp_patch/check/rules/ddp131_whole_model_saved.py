"""A model that is saved whole brings its wrapper along, which loads only where a process group is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.save(model, ...)``."""
    for call in facts.calls("torch.save"):
        model = call.args[0].value if call.args else None
        if not isinstance(model, (cst.Name, cst.Attribute)):
            continue
        kinds = facts.kinds(model)
        if Kind.MODULE in kinds and not kinds & {Kind.STATE_DICT, Kind.CHECKPOINT, Kind.OPTIMIZER}:
            yield Finding(
                call,
                f"torch.save({facts.code(model)}, ...) pickles the whole module",
                "the file holds a DistributedDataParallel object, which loads only inside a process group",
                f"Write torch.save({facts.code(model)}.module.state_dict(), ...).",
            )


RULE = Rule("DDP131", "whole-model-saved", "A module is saved whole", find)
