"""Whether a value that a script works out is of one rank's rows, or is looked after already."""

from __future__ import annotations

import libcst as cst

from ..source import OF_ROWS, Facts, Kind
from .rule import World, world


def is_of_rows(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether a value comes from a batch and is not known to be reduced."""
    kinds = facts.kinds(node)
    return bool(kinds & OF_ROWS) and Kind.REDUCED not in kinds


def ranks_differ(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ranks would see different values here: rows are dealt, and nobody brings them together.

    In a script of one process, where a loader is looped over. In one with DDP, where the file reduces nothing, the line
    runs on all ranks, and the loop trains or the loader of its evaluation is dealt as well.
    """
    if not facts.batch_loops:
        return False
    if world(facts) is World.PLAIN:
        return True
    if facts.on_some_ranks(node) or facts.reduces:
        return False
    loop = facts.batch_loop(node)
    samplers = facts.calls("torch.utils.data.DistributedSampler")
    return len(samplers) > 1 or (loop is not None and loop.trains)
