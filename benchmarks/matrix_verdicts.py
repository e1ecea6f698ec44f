"""What the ranks of a tool saw, held against one process."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from matrix_cases import Case
from matrix_tools import ONE_PROCESS, OURS, Prepared, epoch, measure, untrained
from torch.utils.data import DataLoader

EXACT = 1e-9  # relative; float64 sums in another order differ by 1e-16

Epoch = dict[str, Any]  # what one rank saw, or how it failed


def judge(tool: str, case: Case, rows: int, ranks: list[Epoch]) -> str:
    """Say in a few words what differs from one process."""
    failed = [rank["error"] for rank in ranks if "error" in rank]
    if failed:
        return next((error for error in failed if error != "hang"), "hang")
    alone = measure(ONE_PROCESS, case, rows)
    if alone["drawn"] and not ranks[0]["drawn"]:
        return "sampler lost"
    batches = global_batches(tool, ranks)
    said = [f"{rows.total()} {word}" for word, rows in other_rows(alone, ranks, batches).items() if rows]
    if tool == OURS:
        said += other_epoch(case, rows, ranks, alone)
    else:
        said += other_mean(case, rows, ranks, batches, not said)
    said += ["class lost"] * (not ranks[0]["class_kept"])
    said += ["other texts"] * any(rank["wrong_names"] for rank in ranks)
    return ", ".join(said) or "exact"


def global_batches(tool: str, ranks: list[Epoch]) -> list[list[int]]:
    """Join what the ranks saw in each step; under ddp_patch each of them sees all of it."""
    if tool == OURS:
        return ranks[0]["batches"]
    steps = itertools.zip_longest(*(rank["batches"] for rank in ranks), fillvalue=[])
    return [flat(parts) for parts in steps]


def flat(batches: Iterable[Any]) -> list[int]:
    """List the rows of an epoch, whether or not they are in batches already."""
    return [row for batch in batches for row in (batch if isinstance(batch, list) else [batch])]


def other_rows(alone: Epoch, ranks: list[Epoch], batches: list[list[int]]) -> dict[str, Counter[int]]:
    """Count what an epoch has too often, and what it lacks."""
    drawn = ranks[0]["drawn"]
    due, seen = Counter(flat(drawn[0] if drawn else alone["batches"])), Counter(flat(batches))
    return {"twice": seen - due, "lost": due - seen}


def other_epoch(case: Case, rows: int, ranks: list[Epoch], alone: Epoch) -> list[str]:
    """Hold ddp_patch to what it promises: batch by batch what one process sees, on every rank."""
    keys = ["batches", "sizes", "correct", "length", "dataset_length"]
    if any(rank[key] != ranks[0][key] for rank in ranks for key in keys):
        return ["ranks differ"]
    if case.seeds == "unseeded":
        keys.remove("batches")
    said = [f"other {key}" for key in keys if ranks[0][key] != alone[key]]
    if case.seeds == "unseeded":
        alone = on_batches(case, rows, ranks[0]["batches"])
    return said or in_words(error_of(ranks[0]["gradients"], alone["gradients"], mean=False))


def other_mean(case: Case, rows: int, ranks: list[Epoch], batches: list[list[int]], compares_order: bool) -> list[str]:
    """Hold the other tools to the mean over the epoch, with the script's batch size or with the one they make of it."""
    drawn = ranks[0]["drawn"]
    errors = []
    for size in (case.batch, max(map(len, batches))):
        if not drawn:
            alone = measure(ONE_PROCESS, case, rows, size)
        elif case.own_batches:
            alone = on_batches(case, rows, drawn[0])
        else:
            alone = on_batches(case, rows, [drawn[0][at : at + size] for at in range(0, len(drawn[0]), size)])
        errors.append(error_of(ranks[0]["gradients"], alone["gradients"], mean=True))
    said = []
    if compares_order and case.seeds == "fixed" and not case.own_batches:
        said += ["other order"] * (list(map(sorted, batches)) != list(map(sorted, alone["batches"])))
    return said + in_words(min(errors))


def on_batches(case: Case, rows: int, batches: list[list[int]]) -> Epoch:
    """Give the epoch of one process that has these batches."""
    dataset, options = case.build(rows, case.batch)
    whole = getattr(dataset, "dataset", dataset)  # what random_split took its part from
    loader = DataLoader(whole, batch_sampler=batches, collate_fn=options.get("collate_fn"))
    model, optimizer = untrained()
    return epoch(case, model, Prepared(model, optimizer, loader))


def error_of(found: list[list[float]], due: list[list[float]], mean: bool) -> float:
    """Give the largest difference of gradients, per step or in the mean, to the largest component."""
    gradients = [torch.tensor(steps, dtype=torch.float64) for steps in (found, due)]
    left, right = (steps.mean(0) for steps in gradients) if mean else gradients
    return ((left - right).abs().max() / right.abs().max()).item()


def in_words(error: float) -> list[str]:
    """Tell of a gradient's error, unless it is rounding."""
    return [] if error <= EXACT else [f"gradient {error:.2g}"]


READ = {"sequential", "IterableDataset", "own collate_fn that pads"}  # the cases whose loading is told


def facts(tool: str, case: Case, rows: int, ranks: list[Epoch]) -> dict[str, str]:
    """Count what a script reads off its loader; the names tell what one process has."""
    due, found = numbers(OURS, case, [measure(ONE_PROCESS, case, rows)]), numbers(tool, case, ranks)
    return {f"{name} (one process: {due[name]:g})": f"{found[name]:g}" for name in due}


def numbers(tool: str, case: Case, ranks: list[Epoch]) -> dict[str, float]:
    """Count the same of an epoch."""
    first = ranks[0]
    loads = {f"rows that rank 0 loads, {case.name}": len(first["loaded"])}
    if case.name != "sequential":
        return loads
    return {
        "rows of a full batch": max(map(len, global_batches(tool, ranks))),
        "`len(loader)`": first["length"],
        "`correct / len(loader.dataset)`, all correct": first["correct"] / first["dataset_length"],
    } | loads
