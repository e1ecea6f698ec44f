"""A plan, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from .compression import MATRIX
from .overlap import CAP
from .units import shown_bytes, shown_count, shown_seconds

_WIDTH = 110
_HEAD = [
    "ranks",
    "hosts x devices",
    "sums up by",
    "all-reduce",
    "waits",
    "step",
    "rows/s",
    "times as fast",
    "efficiency",
]
_HEADINGS = {
    "strong": "The batch stays, {rows} rows in a step (strong scaling; what ddp_patch does with your batch_size)",
    "weak": "Each rank has {rows} rows, the batch grows (weak scaling; another learning rate)",
}
_NAMES = {
    "ddp": "DistributedDataParallel",
    "zero1": "ZeroRedundancyOptimizer (shards the optimizer's states)",
    "fsdp": "FSDP2, fully_shard (shards everything)",
}
_WRITE = {
    "checkpoint": "Activations are more than half of the memory. Compute them again in the backward:",
    "view": "Gradients are held twice. DDP's buckets can be their memory:",
    "zero1": "Shard the optimizer's states (ZeRO, stage 1; weights travel as well, so 1.5 times the bytes):",
    "fsdp": "Shard weights, gradients and states (ZeRO, stage 3; 1.5 times the bytes as well):",
    "tensor": "Where FSDP2 is not enough, split matrices over the devices of a host as well:",
}


def written(found: dict[str, Any]) -> str:
    """Lay out a plan: what each number of ranks brings, where it stops to pay, what fits, and what to write."""
    several = f" in {found['batches']} batches" if found["batches"] > 1 else ""
    lines = wrapped(
        f"{shown_count(found['parameters'])} parameters, {shown_bytes(found['gradient_bytes'])} of gradients to sum up "
        f"in each step. One rank alone takes {shown_seconds(found['seconds_alone'])} for {found['batch_rows']:g} rows"
        f"{several}."
    )
    if found["assumed"]:
        lines += wrapped(f"Assumed, as nobody said: {', '.join(found['assumed'])}.")
    for name, points in found["scaling"].items():
        lines += [
            "",
            _HEADINGS[name].format(rows=shown_count(points[0]["rows" if name == "strong" else "rows_of_a_rank"])),
        ]
        lines += [f"  {line}" for line in columns([_HEAD, *map(_row, points)])]
        lines += _marks(found["falls_below"][name], [its["ranks"] for its in points])
        few = next((its["ranks"] for its in points if its["rows"] < its["ranks"] * found["batches"]), None)
        if few:
            words = "a batch has fewer rows than there are ranks: each rank computes all."
            lines += wrapped(f"From {few:,} ranks on {words}", "  ")
    lines += ["", *wrapped(_WORDS)]
    if found["bucket_bytes"] < CAP < found["gradient_bytes"]:
        lines += ["", *wrapped(_SMALL_BUCKETS)]
    memory = found["memory"]
    if all(entry == next(iter(memory.values())) for entry in memory.values()):  # without activations rows do not matter
        memory = dict(list(memory.items())[:1])
    for name, entry in memory.items():
        lines += ["", *_memory(name, entry, len(memory) > 1)]
    lines += _compression(found) + _rates(found)
    if found["measured"]:
        lines += ["", "Held against what was measured"]
        rows = [["ranks", "rows", "measured", "planned", "error"]]
        for its in found["measured"]:
            seconds = [shown_seconds(its[name]) for name in ("measured_seconds", "predicted_seconds")]
            rows.append([str(its["ranks"]), f"{its['rows']:g}", *seconds, f"{its['error']:+.0%}"])
        lines += [f"  {line}" for line in columns(rows)]
    return "\n".join(lines) + "\n"


def _marks(marks: list[dict[str, Any]], ranks: Sequence[int]) -> list[str]:
    lines, said = [], ""
    for mark in marks:
        because = "" if mark["why"] == said else f", because {mark['why']}"
        lines += wrapped(f"Below {mark['efficiency']:.0%} {where(mark['on'], ranks)}{because}.", "  ")
        said = mark["why"]
    return lines or ["  Never below 80%."]


def _row(its: dict[str, Any]) -> list[str]:
    return [
        f"{its['ranks']:,}",
        f"{its['hosts']} x {its['devices']}",
        its["algorithm"],
        shown_seconds(its["all_reduce"]),
        shown_seconds(its["exposed"]),
        shown_seconds(its["step"]),
        shown_count(its["throughput"]),
        f"{its['speed_up']:,.2f}",
        f"{its['efficiency']:.0%}",
    ]


def _memory(name: str, memory: dict[str, Any], several: bool) -> list[str]:
    first, last, activations = memory["ranks"][0], memory["ranks"][-1], memory["activations_known"]
    its, which = (
        first["ddp"],
        {"strong": " (the batch stays)", "weak": " (each rank's rows stay)"}[name] if several else "",
    )
    parts = [f"weights {shown_bytes(its['weights'])}", f"gradients {shown_bytes(its['gradients'])}"]
    parts += [f"optimizer {shown_bytes(its['states'])}", f"DDP's buckets {shown_bytes(its['buffers'])}"]
    parts += [f"activations {shown_bytes(its['activations'])}"] if activations else []
    lines = wrapped(
        f"Memory of a rank{which}: {shown_bytes(its['total'])} on {first['ranks']:,} ranks: {', '.join(parts)}. "
        f"({memory['bytes_per_parameter']} bytes a parameter, without buckets.)"
    )
    if not activations:
        lines += wrapped("Without activations: give them by --activations BYTES, for the rows of --batch.", "  ")
    if "fits_from" not in memory:
        return [*lines, "  Whether it fits: --memory 80e9."]
    room = shown_bytes(memory["device_bytes"])
    if memory["fits_everywhere"]:
        return [*lines, f"  It fits into {room}."]
    for way, words in _NAMES.items():
        on, total = memory["fits_on"][way], shown_bytes(last[way]["total"])
        fits = on and where(on, [its["ranks"] for its in memory["ranks"]])
        says = f"fits into {room} {fits}" if fits else f"does not fit into {room}"
        lines.append(f"  {words}: {says}; {total} on {last['ranks']:,} ranks")
    for step, code in memory["write"].items():
        lines += [*wrapped(_WRITE[step], "  "), *(f"      {line}" for line in code)]
    return lines


def _compression(found: dict[str, Any]) -> list[str]:
    rows = [["batch", "write", "step", "instead of"]]
    for name, hooks in found["compression"].items():
        plain = found["scaling"][name][-1]
        which = {"strong": "stays", "weak": "grows"}[name]
        rows += [
            [which, its["write"], shown_seconds(its["step"]), shown_seconds(plain["step"])] for its in hooks.values()
        ]
    ranks = next(iter(found["scaling"].values()))[-1]["ranks"]
    text = [f"Gradients in fewer bytes, on {ranks:,} ranks (the numbers are then no longer one process's)"]
    text += [f"  {line}" for line in columns(rows)]
    text += wrapped(
        f"powersgd is shown for weights of {MATRIX:,} x {MATRIX:,}, and without what compressing computes. It begins "
        "after 1,000 steps.",
        "  ",
    )
    return ["", *text]


def _rates(found: dict[str, Any]) -> list[str]:
    lines = ["", "Learning rate"]
    for its in found["learning_rate"].values():
        if its["rule"] == "unchanged":
            lines += wrapped("The batch stays: leave the learning rate as it is.", "  ")
        else:
            shown = f": {its['from']:g} becomes {its['to']:.3g}" if "to" in its else ""
            lines += wrapped(
                f"A batch of {shown_count(its['rows'])} rows with {found['optimizer']}: times {its['factor']:.3g} "
                f"({its['rule']} in the batch){shown}. {_SOURCES[its['rule']]}",
                "  ",
            )
        if "steps_of_before" in its:
            lines += wrapped(
                f"By its critical batch size it needs {its['steps_of_before']:.3g} times the steps of before, and "
                f"{its['rows_of_before']:.3g} times the rows, to the same loss (McCandlish et al. 2018).",
                "  ",
            )
    return lines


_WORDS = (
    "all-reduce: summing up the gradients of all ranks. waits: what of it is left after the backward, when ranks wait "
    "for it. efficiency: 100% is N times as fast on N ranks."
)
_SMALL_BUCKETS = (
    "Buckets below 25 MiB look faster here than they are: what each costs host and device beside its latency is left "
    "out. torch's benchmark of DDP measured 1 MiB up to 4% slower than 25 on 16 GPUs: time a step with either."
)
_SOURCES = {
    "linear": "Warm up over 5 epochs. It held for ResNet-50 up to 8,192 rows (Goyal et al. 2017), not far beyond.",
    "square root": "A rule to begin with, not a law (Krizhevsky 2014, Malladi et al. 2022): try half and twice of it.",
}


def where(some: Sequence[int], ranks: Sequence[int]) -> str:
    """Say on which numbers of ranks something holds: ``from 8 ranks on`` only where it holds on all that follow.

    Args:
        some: at least one of ``ranks``.
        ranks: all that were looked at, rising.
    """
    last = [its for its in ranks if its > max((its for its in ranks if its not in some), default=0)]
    alone = [f"{its:,}" for its in some if its not in last]
    from_ = f"from {last[0]:,} ranks on" if last else ""
    if not alone:
        return from_
    those = f"on {', '.join(alone)} ranks"
    return f"{those} and {from_}" if from_ else those


def wrapped(text: str, indent: str = "") -> list[str]:
    """Give the lines of a paragraph."""
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Give the lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
