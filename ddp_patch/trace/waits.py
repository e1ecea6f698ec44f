"""Which rank the others of its host wait for, and how long: clocks of several hosts are not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..job.divergence import named_ranks
from ..job.recorder import Trace


@dataclass(frozen=True)
class Wait:
    """Between the first and the last rank of a host at one point."""

    count: int
    seconds: float
    last: int  # rank


def waits_of(traces: Sequence[Trace]) -> list[Wait]:
    """Give the waits at all points to which every rank of the host has come.

    Args:
        traces: of the ranks of one host.
    """
    common = set.intersection(*(set(trace.points) for trace in traces))
    found = []
    for count in sorted(common):
        came = {trace.rank: trace.points[count].entered for trace in traces}
        last = max(came, key=lambda rank: came[rank])
        found.append(Wait(count, (came[last] - min(came.values())) / 1e9, last))
    return found


def said_of_waits(traces: Sequence[Trace]) -> str:
    """Say of each host with several ranks who came last, and where that took longest."""
    hosts: dict[str, list[Trace]] = {}
    for trace in traces:
        hosts.setdefault(trace.host, []).append(trace)
    said = []
    for name, its in hosts.items():
        waits = waits_of(its) if len(its) > 1 else []
        if not waits:
            continue
        where = f"{name}: " if len(hosts) > 1 else ""
        times = Counter(wait.last for wait in waits)
        rank, most = times.most_common(1)[0]
        mean = sum(wait.seconds for wait in waits) / len(waits) * 1e3
        longest = max(waits, key=lambda wait: wait.seconds)
        point = its[0].points[longest.count]
        others = named_ranks([trace.rank for trace in its if trace.rank != longest.last])
        said.append(
            f"{where}Rank {rank} came last to {most} of {len(waits)} points; the first waited {mean:.2f} ms for the "
            f"last on average.\n{where}Longest: {longest.seconds * 1e3:.1f} ms at point {longest.count} ({point.what}"
            f"{f', {point.line}' if point.line else ''}), where {others} waited for rank {longest.last}."
        )
    return "\n".join(said)
