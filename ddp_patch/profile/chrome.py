"""The timelines of all ranks in one file, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .timeline import placed

_APART = 10_000_000  # ids of one rank are below
_LANE = 1  # a thread's number that no thread has
_WORDS = {"waiting": "waits for other ranks", "loading": "waits for the loader", "effects": "effect"}


def joined(traces: Sequence[dict[str, Any]], noted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the ranks of one host side by side, each as a process, with a lane of what it waits for.

    Args:
        traces: of the ranks, in Chrome's form.
        noted: what their tracers gave.
    """
    first = min(event["ts"] for trace in traces for event in trace["traceEvents"] if event.get("ph") == "X")
    events: list[dict[str, Any]] = []
    for rank, (trace, its) in enumerate(zip(traces, noted, strict=True)):
        events += _named(rank, "process_name", f"rank {rank}") + _named(rank, "process_sort_index", rank)
        events += _named(rank, "thread_name", "what it waits for") + _named(rank, "thread_sort_index", -1)
        spans = placed([event for event in trace["traceEvents"] if event.get("ph") == "X"], its)
        events += [
            {
                "ph": "X",
                "cat": "ddp_patch",
                "name": _WORDS.get(kind, kind),
                "pid": rank,
                "tid": _LANE,
                "ts": begin - first,
                "dur": end - begin,
                "args": {"line": line},
            }
            for kind, begin, end, line in spans
        ]
        for event in trace["traceEvents"]:
            if event.get("ph") != "M" or event.get("name", "").startswith("thread_"):
                events.append(_of_rank(event, rank, first))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(rank: int, what: str, value: str | int) -> list[dict[str, Any]]:
    key = "sort_index" if what.endswith("index") else "name"
    return [{"ph": "M", "name": what, "pid": rank, "tid": _LANE, "ts": 0, "args": {key: value}}]


def _of_rank(event: dict[str, Any], rank: int, first: float) -> dict[str, Any]:
    changed = {**event, "pid": rank, "ts": max(event.get("ts", first) - first, 0.0)}
    if isinstance(event.get("id"), int):
        changed["id"] = event["id"] + rank * _APART
    return changed
