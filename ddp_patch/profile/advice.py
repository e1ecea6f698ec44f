"""The two or three things to change, the costliest first, each with what to write."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ..measure.network import MANY
from ..plan.units import shown_bytes, shown_seconds
from .found import Found

MOST = 3
# Its constructor asks torch.distributed for the ranks, which in the global view is one process.
_SHARED = (
    "ZeroRedundancyOptimizer shares the work, once the script is written for DDP: python -m ddp_patch migrate train.py "
    "--to ddp --write"
)
_LEAST = 0.05  # of a step; what costs less is not worth a change
_OFTEN = 0.5  # gathers in a step
_QUICK = 0.002  # seconds in which a batch is loaded; a small one came from a worker in 1.6 ms, and in 0.4 ms without


@dataclass(frozen=True)
class Advice:
    """One thing to change."""

    costs: float  # seconds of a step, at most what there is to win
    what: str
    why: str
    write: str


def advice(its: Found) -> list[Advice]:
    """Give what to change; nothing where nothing of a step is worth it."""
    all_of_it = [*_whole(its), *_gathers(its), *_loading(its), *_effects(its), *_waiting(its), *_fixed(its)]
    return sorted((each for each in all_of_it if each.costs > _LEAST * its.step), key=lambda each: -each.costs)[:MOST]


def costliest(its: Found) -> str:
    """Say which layer computes longest."""
    layers = [(name, *seconds) for name, seconds in its.layers.items() if "(" in name]
    if not layers:
        return ""
    name, forward, backward = layers[0]
    return (
        f"The layer that costs most is {name}: {shown_seconds(forward)} in the forward, {shown_seconds(backward)} in "
        "the backward (with torch's profiler on)."
    )


def _whole(its: Found) -> Iterator[Advice]:
    count = len(its.ranks)
    for name, why in its.ledger.get("on_whole", {}).items():
        yield Advice(
            its.mean("computing") * (1 - 1 / count),
            f"Every rank computes all of {name}",
            why,
            "what the reason names; docs/models.md shows how models split",
        )


def _gathers(its: Found) -> Iterator[Advice]:
    steps = max(its.ledger.get("steps_of_job", 1), 1)
    for each in sorted(its.ledger.get("gathers", []), key=lambda each: -each["bytes"]):
        often = each["collectives"] / steps
        if often <= _OFTEN:
            continue
        waits = sum(rank.lines.get(("waiting", each["line"]), 0.0) for rank in its.ranks) / len(its.ranks)
        yield Advice(
            waits,
            f"{each['function']} at {each['line']} gathers whole batches",
            f"{often:.1f} times a step, {shown_bytes(each['bytes'] / max(each['collectives'], 1))} each",
            "an operation that keeps rows apart there (docs/report.md has a table), or do it once in an epoch",
        )


def _loading(its: Found) -> Iterator[Advice]:
    loaders = its.ledger.get("loaders", {})
    has_workers = any("num_workers=" in name and "num_workers=0" not in name for name in loaders)
    if its.mean("loading") < _QUICK:
        write = "less work in the dataset's __getitem__; a worker takes as long to hand a batch over"
    elif has_workers:
        write = "more workers, or less work in the dataset's __getitem__"
    else:
        write = "DataLoader(..., num_workers=2, persistent_workers=True), which loads the next batch meanwhile"
    yield Advice(
        its.mean("loading"),
        "A step waits for its batch",
        f"{_share(its, 'loading')} of a step is spent in the loader",
        write,
    )


def _effects(its: Found) -> Iterator[Advice]:
    lines = sorted(_lines(its, "effects").items(), key=lambda item: -item[1])[:2]
    where = f", most of it at {' and '.join(line for line, _ in lines)}" if lines else ""
    yield Advice(
        its.mean("effects"),
        "Files, folders or commands in every step",
        f"{_share(its, 'effects')} of a step goes to what happens once for all ranks, who wait for it{where}",
        "it once in an epoch, or in every hundredth step",
    )


def _waiting(its: Found) -> Iterator[Advice]:
    waiting = its.mean("waiting")
    working = [rank.step - rank.parts["waiting"] for rank in its.ranks]
    behind = max(working) - statistics.mean(working)
    if len(working) > 1 and behind > waiting / 2:
        slowest = working.index(max(working))
        yield Advice(
            behind,
            f"The other ranks wait for rank {slowest}",
            f"it has {shown_seconds(behind)} more to do in a step than the mean of all ranks",
            "nothing in the script, if another program or a slower device is the reason: look at rank "
            f"{slowest}'s host (nvidia-smi, top); else deal rows of like cost",
        )
        return
    took, hidden = sum(each.seconds for each in its.buckets), sum(each.hidden for each in its.buckets)
    gradients = min(took - hidden, waiting)
    size, count = sum(each.bytes for each in its.buckets), len(its.buckets)
    alone = _seconds(its, size, count)
    by_bytes = alone > gradients / 2
    instead = "" if by_bytes else f" (without ranks that come late it would be {shown_seconds(alone)})"
    fewer = '; half the bytes: ddp_patch.enable(comm_hook="bf16")' if by_bytes else ""
    what = "travel longer than the backward hides them" if by_bytes else "wait for ranks that come late"
    late = "" if by_bytes else "nothing in the script, if other programs have the cores meanwhile; else "
    yield Advice(
        gradients,
        f"Gradients {what}",
        f"{shown_bytes(size)} in {count} bucket{'s' if count > 1 else ''}, {shown_seconds(took)} together{instead}, of "
        f"which {shown_seconds(hidden)} are hidden",
        f"{late}more rows in a batch, or several backwards for each step{fewer}",
    )
    if its.meetings or not its.buckets:  # else they wait for gradients alone
        yield _meeting(its, waiting - gradients)


def _seconds(its: Found, size: int, count: int) -> float:
    """Give what so many all-reduces of so many bytes take where all ranks come at once, by what was timed here."""
    few, many = its.network.get("few", 0.0), its.network.get("many", 0.0)
    return count * few + size / MANY * max(many - few, 0.0)


def _meeting(its: Found, waiting: float) -> Advice:
    """Of what ranks wait for besides gradients."""
    times = ", ".join(f"{count:.1f} times by {name}" for name, count in list(its.meetings.items())[:3])
    lines = sorted(_lines(its, "waiting").items(), key=lambda item: -item[1])[:2]
    where = f", most of it at {' and '.join(line for line, _ in lines)}" if lines else ""
    has_norm = any("BatchNorm" in name for name in its.layers)
    norm = (
        "; BatchNorm layers meet in each forward and backward, and enable(sync_batchnorm=False) gives each rank its "
        "own statistics (other numbers than one process)"
        if has_norm
        else ""
    )
    return Advice(
        waiting,
        "Ranks meet besides for gradients",
        f"{times or 'they'} in a step, and wait for the last to come{where}",
        f"fewer looks at values of the whole batch (loss.item(), metrics) in a step{norm}",
    )


def _fixed(its: Found) -> Iterator[Advice]:
    yield Advice(
        its.mean("python"),
        "Steps are short beside ddp_patch's own Python",
        f"{_share(its, 'python')} of a step; it is the same however many rows there are",
        "a larger batch_size, if the learning rate may change (python -m ddp_patch plan says how)",
    )
    several = len(its.ranks) > 1
    shared = f"; {_SHARED}" if several else ""
    yield Advice(
        its.mean("optimizer"),
        "Every rank steps the whole optimizer" if several else "The optimizer's step is long",
        f"{_share(its, 'optimizer')} of a step",
        f"fused=True for the optimizer, where it has it{shared}",
    )


def _lines(its: Found, kind: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in its.ranks:
        for (what, line), seconds in rank.lines.items():
            if what == kind:
                found[line] = found.get(line, 0.0) + seconds / len(its.ranks)
    return found


def _share(its: Found, part: str) -> str:
    return f"{its.mean(part) / its.step:.0%} ({shown_seconds(its.mean(part))})"
