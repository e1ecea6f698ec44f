"""What torch's profiler saw of one rank: collectives, what of them was hidden behind computing, and layers.

On a CPU what a rank waits for is known from its own clock. On an accelerator a collective is hidden where another
kernel runs meanwhile, and a layer's seconds are those of its kernels.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..measure.tracer import ANCHOR, LAYER, STEP

Interval = tuple[float, float]
_BYTES = {"double": 8, "long": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2, "half": 2, "bfloat16": 2}
_BACKWARD = "autograd::engine::evaluate_function: "
_OUTSIDE = "the script, outside of layers"
_GRADIENTS = "gradients: added up, copied into DDP's buckets"


@dataclass(frozen=True)
class Collective:
    """One collective of a step, and where in its step it was; in microseconds."""

    name: str
    bytes: int
    begin: float
    end: float
    hidden: float  # of it, nobody waited for


@dataclass(frozen=True)
class TracedStep:
    """One traced step of a rank; in microseconds."""

    seconds: float
    collectives: list[Collective]
    exposed: float  # in which this rank waited for a collective
    hidden: float  # in which a collective went on beside computing
    spans: list[tuple[str, float, float, str]]  # kind, begin and end in the step, line of the script


@dataclass(frozen=True)
class Timeline:
    """What is known of one rank."""

    steps: list[TracedStep]
    layers: dict[str, tuple[float, float]]  # microseconds of a step in the forward and in the backward, most first


def read(trace: dict[str, Any], noted: dict[str, Any]) -> Timeline:
    """Read a rank's trace.

    Args:
        trace: in Chrome's form, as torch's profiler writes it.
        noted: what the tracer gave: where clocks meet, what was waited for, and whether that is all of it.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    spans = placed(events, noted)
    found = sorted(
        (event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == STEP and not _is_gpu(event)
    )
    steps = [_step(begin, end, events, spans, noted.get("clocks", True)) for begin, end in found]
    waits = union((begin, end) for kind, begin, end, _ in spans if kind == "waiting")
    return Timeline(steps, _layers(events, waits, max(len(steps), 1)))


def placed(events: Iterable[dict[str, Any]], noted: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    """Give what was waited for on the trace's clock, in microseconds."""
    anchor = next(event["ts"] for event in events if event["name"] == ANCHOR)

    def at(seconds: float) -> float:
        return float(anchor + 1e6 * (seconds - noted["anchor"]))

    return [(kind, at(begin), at(end), line) for kind, begin, end, line in noted["spans"]]


def _step(
    begin: float,
    end: float,
    events: Sequence[dict[str, Any]],
    spans: Sequence[tuple[str, float, float, str]],
    clocks: bool,
) -> TracedStep:
    inside = [event for event in events if begin <= event["ts"] < end]
    kernels = [event for event in inside if event.get("cat") == "kernel"]
    of_device = [event for event in kernels if "nccl" in event["name"].lower()]
    collectives = of_device or [
        event for event in inside if event["name"].startswith(("gloo:", "nccl:")) and not _is_gpu(event)
    ]
    if of_device:
        busy = union((event["ts"], event["ts"] + event["dur"]) for event in kernels if event not in of_device)
    elif not clocks:
        busy = union((event["ts"], event["ts"] + event["dur"]) for event in inside if event.get("cat") == "cpu_op")
    else:
        waits = union((since, until) for kind, since, until, _ in spans if kind == "waiting")
        busy = _between(waits, begin, max([end, *(event["ts"] + event["dur"] for event in collectives)]))
    lasting = [(event["ts"], event["ts"] + event["dur"]) for event in collectives]
    together = union(lasting)
    hidden = overlap(together, busy)
    found = [
        Collective(_name(event), _bytes(event), since - begin, until - begin, overlap([(since, until)], busy))
        for event, (since, until) in zip(collectives, lasting, strict=True)
    ]
    shifted = [(kind, a - begin, b - begin, line) for kind, a, b, line in spans if begin <= a < end]
    exposed = sum(b - a for a, b in together) - hidden
    return TracedStep(end - begin, sorted(found, key=lambda its: its.begin), exposed, hidden, shifted)


def _is_gpu(event: dict[str, Any]) -> bool:
    return str(event.get("cat", "")).startswith("gpu_")


def _name(event: dict[str, Any]) -> str:
    return str(event["name"].partition(":")[2] or event.get("args", {}).get("Collective name") or event["name"])


def _bytes(event: dict[str, Any]) -> int:
    args = event.get("args", {})
    if "In msg nelems" in args:
        return int(args["In msg nelems"]) * _BYTES.get(str(args.get("dtype", "float")).lower(), 4)
    kinds = args.get("Input type", [])
    total = 0
    for dims, kind in zip(args.get("Input Dims", []), kinds, strict=False):
        count = _BYTES.get(str(kind), 4) if dims else 0
        for size in dims if all(isinstance(size, int) for size in dims) else []:
            count *= size
        total += count
    return total


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Give what intervals cover, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def overlap(one: Iterable[Interval], other: Sequence[Interval]) -> float:
    """Give how long both cover the same; ``other`` is a union."""
    total = 0.0
    for begin, end in one:
        for since, until in other[max(bisect.bisect(other, (begin,)) - 1, 0) :]:
            if since >= end:
                break
            total += max(min(end, until) - max(begin, since), 0.0)
    return total


def _between(intervals: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """Give what a union leaves free."""
    edges = [begin, *(edge for each in intervals for edge in each), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def _layers(events: Sequence[dict[str, Any]], waits: Sequence[Interval], steps: int) -> dict[str, tuple[float, float]]:
    """Give the time of each layer without those inside it, and without what it waits for other ranks."""
    kernels: dict[Any, float] = defaultdict(float)  # by the operation that started them
    for event in events:
        if event.get("cat") == "kernel" and "nccl" not in event["name"].lower():
            kernels[event.get("args", {}).get("External id")] += event["dur"]
    forward: dict[str, float] = defaultdict(float)
    backward: dict[str, float] = defaultdict(float)
    of_sequence: dict[int, str] = {}
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ("cpu_op", "user_annotation"):
            by_thread[event["tid"]].append(event)
    for its in by_thread.values():
        for event in its:  # as long as it computes
            since = event["ts"]
            event["computes"] = event["dur"] - overlap([(since, since + event["dur"])], waits)
        _nested(its, kernels, forward, of_sequence)
    for its in by_thread.values():
        _backwards(its, kernels, of_sequence, backward)
    names = {*forward, *backward}
    found = {name: (forward[name] / steps, backward[name] / steps) for name in names}
    return dict(sorted(found.items(), key=lambda item: -sum(item[1])))


def _nested(
    events: list[dict[str, Any]], kernels: dict[Any, float], forward: dict[str, float], of_sequence: dict[int, str]
) -> None:
    """Walk one thread, whose events lie in each other."""
    open_layers: list[tuple[float, str]] = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while open_layers and open_layers[-1][0] <= event["ts"]:
            open_layers.pop()
        args, name = event.get("args", {}), event["name"]
        if name.startswith(LAYER):
            its = name.removeprefix(LAYER)
            if not kernels:
                forward[its] += event["computes"]
                if open_layers:
                    forward[open_layers[-1][1]] -= event["computes"]
            open_layers.append((event["ts"] + event["dur"], its))
        elif open_layers and event["cat"] == "cpu_op":
            if kernels:
                forward[open_layers[-1][1]] += kernels.get(args.get("External id"), 0.0)
            if "Sequence number" in args and args.get("Sequence number", -1) >= 0:
                of_sequence.setdefault(args["Sequence number"], open_layers[-1][1])


def _backwards(
    events: list[dict[str, Any]], kernels: dict[Any, float], of_sequence: dict[int, str], backward: dict[str, float]
) -> None:
    """Walk one thread's functions of backwards, each with the operations inside it."""
    until, layer = float("-inf"), ""
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        args = event.get("args", {})
        if event["name"].startswith(_BACKWARD):
            until = event["ts"] + event["dur"]
            is_sum = "AccumulateGrad" in event["name"]
            layer = _GRADIENTS if is_sum else of_sequence.get(args.get("Sequence number", -1), _OUTSIDE)
            if not kernels:
                backward[layer] += event["computes"]
        elif kernels and event["ts"] < until:
            backward[layer] += kernels.get(args.get("External id"), 0.0)
