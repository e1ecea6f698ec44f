"""A model that is saved whole brings its wrapper along, which loads only where a process group is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.save(model, ...)``."""
    for call in facts.calls("torch.save"):
        saved = call.args[0].value if call.args else None
        for model in _parts(saved):
            kinds = facts.kinds(model)
            if Kind.MODULE not in kinds or kinds & {Kind.STATE_DICT, Kind.CHECKPOINT, Kind.OPTIMIZER}:
                continue
            name = facts.code(model)
            yield Finding(
                call,
                f"torch.save({name}, ...) pickles the whole module",
                "the file holds a DistributedDataParallel object, which loads only inside a process group",
                f"Write torch.save({name}.state_dict(), ...), or {name}.module.state_dict() where DDP wraps it.",
            )


def _parts(saved: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Give the names that are saved: what is given, or what a dict that is given holds."""
    if isinstance(saved, (cst.Name, cst.Attribute)):
        yield saved
    if isinstance(saved, cst.Dict):
        for element in saved.elements:
            yield from _parts(element.value if not isinstance(element.value, cst.Dict) else None)


RULE = Rule("DDP131", "whole-model-saved", "A module is saved whole", find)
