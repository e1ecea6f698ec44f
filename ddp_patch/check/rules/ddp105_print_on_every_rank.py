"""What is printed is printed once for each process."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, Role
from ..rule import Finding, Rule

_RANK = re.compile(r"rank|^gpu(_id)?$")


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first print of a file that is under no test on the rank, and count the others."""
    if "print" in facts.scopes.functions or "print" in facts.imported or _overridden(facts):
        return
    joins = facts.calls("torch.distributed.init_process_group", "torch.nn.parallel.DistributedDataParallel")
    if Role.DDP in facts.roles and not joins:
        return  # the file that joins the group may silence the other ranks
    calls = [call for call in facts.calls("print") if not facts.on_some_ranks(call) and not _names_rank(facts, call)]
    if not calls:
        return
    more = f" (and {len(calls) - 1} more)" if len(calls) > 1 else ""
    yield Finding(
        calls[0],
        f"this print{more} is under no test on the rank",
        "every process prints it, N times in all",
        "Write if dist.get_rank() == 0: print(...), or start with torchrun --local-ranks-filter 0.",
    )


def _names_rank(facts: Facts, call: cst.Call) -> bool:
    """``print(f"[rank {rank}] ...")`` is meant to be printed by each."""
    return any(Kind.RANK in facts.kinds(name) or _RANK.search(name.value) for name in facts.tree.within(call, cst.Name))


def _overridden(facts: Facts) -> bool:
    """``builtins.print = ...`` and functions like setup_for_distributed silence the other ranks."""
    names = ("setup_for_distributed", "init_distributed_mode", "init_distributed", "suppress_output")
    return (
        "builtins" in facts.modules
        or any(name in called for called in facts.imported.values() for name in names)
        or any(facts.methods(name) or facts.calls(name) for name in names)
    )


RULE = Rule("DDP105", "print-on-every-rank", "A print is under no test on the rank", find)
