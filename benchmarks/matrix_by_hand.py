"""The local view beside DDP by hand, loader by loader.

The local view keeps the script's batch size for all ranks together, so that it is held to DDP by hand with
``batch_size // ranks``, by somebody who deals whatever the script draws from (``matrix_careful.py``): the same batches
on every rank, and the same gradients. Where a script seeds nothing each run draws anew: then it is held to the number
of rows that are repeated or lost.
"""

from __future__ import annotations

from matrix_cases import Case
from matrix_tools import DIVIDED, LOCAL, ONE_PROCESS, measure
from matrix_verdicts import EXACT, Epoch, error_of, global_batches, other_rows

EQUAL = "the same batches and gradients on every rank"


def compared(case: Case, rows: int, by_hand: list[Epoch], local: list[Epoch]) -> tuple[str, bool]:
    """Say how the ranks of the local view compare with those of hand-written DDP, and whether they may."""
    failed = [rank["error"] for rank in local if "error" in rank]
    if failed:
        return f"fails: {failed[0]}", False
    if by_hand[0].get("drawn") and not local[0]["drawn"]:
        return "sampler lost", False
    if any("error" in rank for rank in by_hand):
        return "fails by hand", True
    if all(are_equal(*pair) for pair in zip(by_hand, local, strict=True)):
        return EQUAL, True
    off = {tool: rows_off(tool, case, rows, ranks) for tool, ranks in ((DIVIDED, by_hand), (LOCAL, local))}
    return f"{off[DIVIDED]} rows repeated or lost by hand, {off[LOCAL]} in the local view", off[LOCAL] <= off[DIVIDED]


def are_equal(by_hand: Epoch, local: Epoch) -> bool:
    """Tell whether a rank had the same rows in the same batches, and the same gradient of each."""
    if by_hand["batches"] != local["batches"]:
        return False
    return error_of(local["gradients"], by_hand["gradients"], mean=False) <= EXACT


def rows_off(tool: str, case: Case, rows: int, ranks: list[Epoch]) -> int:
    """Count the rows that an epoch has too often or lacks."""
    differences = other_rows(measure(ONE_PROCESS, case, rows), ranks, global_batches(tool, ranks))
    return sum(found.total() for found in differences.values())


def in_lines(said: dict[str, str]) -> str:
    """Put it into a list, of which the equal ones come first.

    Args:
        said: of each case, by its name.
    """
    names: dict[str, list[str]] = {EQUAL: []}
    for name, how in said.items():
        names.setdefault(how, []).append(name)
    lines = [f"- {how}, {len(which)} of {len(said)}: {'; '.join(which)}" for how, which in names.items()]
    return "\n".join([f"{LOCAL}, beside {DIVIDED}:\n", *lines])
