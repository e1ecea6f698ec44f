"""As many workers as cores, for each of N processes, are N times too many."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..rule import Finding, Rule

_COUNTS = {"os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count"}


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``num_workers`` that is worked out from the number of cores alone."""
    for call in facts.calls("torch.utils.data.DataLoader"):
        workers = facts.argument(call, "num_workers", 5)
        if workers is None or isinstance(workers, cst.BinaryOperation):
            continue
        name = facts.name(workers)
        variable = facts.scopes.find(name, facts.scopes.of(call)) if name else None
        sources = [workers] if variable is None else [value.node for value in variable.values]
        counts = [each for source in sources for each in facts.tree.within(source, cst.Call)]
        divided = any(isinstance(source, cst.BinaryOperation) for source in sources)
        if not divided and any(facts.name(each.func) in _COUNTS and not _is_bounded(facts, each) for each in counts):
            yield Finding(
                workers,
                f"num_workers={facts.code(workers)} is the number of cores",
                "every process of the host starts as many, N times more than there are cores",
                "Write os.cpu_count() // int(os.environ['LOCAL_WORLD_SIZE']).",
            )


def _is_bounded(facts: Facts, count: cst.Call) -> bool:
    """``min(os.cpu_count(), 8)``."""
    return any(isinstance(outer, cst.Call) and facts.name(outer.func) == "min" for outer in facts.tree.ancestors(count))


RULE = Rule("DDP141", "workers-of-all-cores", "Each process starts as many workers as there are cores", find)
