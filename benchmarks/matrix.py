"""Which rows, and which gradient, does each tool make of a loader that was written for one process?

    python benchmarks/matrix.py                          # about five minutes
    python benchmarks/matrix.py --ranks 3 --only sampler
    python benchmarks/matrix.py --write matrix.md

Every tool gets the script of the one process plus what its guide says to add, and nothing repaired by hand. The cases
are in ``matrix_cases.py``, the tools in ``matrix_tools.py``. Exit code 1 if ddp_patch is not exact everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch
from matrix_cases import CASES, Case
from matrix_rows import BATCH, Linear
from matrix_tools import ONE_PROCESS, OURS, TOOLS, Prepared, epoch, measure
from torch.distributed import TCPStore
from torch.utils.data import DataLoader

EXACT = 1e-9  # relative; float64 sums in another order differ by 1e-16
Epoch = dict[str, Any]  # what one rank saw, or how it failed


@contextlib.contextmanager
def worker(tool: str, rows: int, arguments: argparse.Namespace, log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Start the process whose forks are a tool's ranks; whatever happens, it is gone afterwards."""
    script = Path(__file__).with_name("matrix_worker.py")
    process = subprocess.Popen(
        [sys.executable, str(script), tool, str(rows), str(arguments.ranks), str(arguments.limit)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        yield process
    finally:
        process.stdin.close()  # it ends at the end of its input
        process.wait()
        process.stdout.close()


def run(tool: str, numbers: list[int], rows: int, arguments: argparse.Namespace) -> dict[int, list[Epoch]]:
    """Measure the cases under one tool: per case, what each rank saw."""
    found = {}
    with tempfile.TemporaryFile("w+") as log, worker(tool, rows, arguments, log) as process:
        for number in numbers:
            # The store lives here, as it does in torchrun's agent, so that its port is never guessed.
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            print(number, store.port, file=process.stdin, flush=True)
            line = process.stdout.readline()
            del store
            if not line:
                log.seek(0)
                raise SystemExit(f"{tool}, {CASES[number].name}: the worker ended.\n{log.read()[-4000:]}")
            found[number] = json.loads(line)
    return found


def one_process(case: Case, rows: int, size: int, drawn: list[list[Any]]) -> Epoch:
    """Give the epoch of one process whose batches have so many rows.

    Args:
        case: the loader.
        rows: of the dataset.
        size: rows of a full batch.
        drawn: what the sampler of rank 0 drew; empty to let one process draw.
    """
    if not drawn:
        return measure(ONE_PROCESS, case, rows, None if case.own_batches else size)
    batches = drawn[0]
    if not case.own_batches:
        batches = [batches[at : at + size] for at in range(0, len(batches), size)]
    dataset, options = case.build(rows, size)
    whole = getattr(dataset, "dataset", dataset)  # what random_split took its part from
    model = Linear()
    loader = DataLoader(whole, batch_sampler=batches, collate_fn=options.get("collate_fn"))
    return epoch(replace(case, loader=DataLoader), model, Prepared(model, torch.optim.SGD(model.parameters(), lr=0.0), loader))


def global_batches(tool: str, ranks: list[Epoch]) -> list[list[int]]:
    """Join what the ranks saw in each step; under ddp_patch each of them sees all of it."""
    if tool == OURS:
        return ranks[0]["batches"]
    steps = itertools.zip_longest(*(rank["batches"] for rank in ranks), fillvalue=[])
    return [list(itertools.chain(*parts)) for parts in steps]


def judge(tool: str, case: Case, rows: int, ranks: list[Epoch]) -> str:
    """Say in a few words what differs from one process."""
    failed = [rank["error"] for rank in ranks if "error" in rank]
    if failed:
        return next((error for error in failed if error != "hang"), "hang")
    batches = global_batches(tool, ranks)
    size = max(map(len, batches))
    alone = one_process(case, rows, size, ranks[0]["drawn"])
    said = other_rows(case, rows, batches, ranks[0]["drawn"])
    if not said and tool == OURS:
        said = other_batches(case, rows, ranks, alone)
    elif not said and case.seeds == "fixed" and not case.own_batches:
        said = ["other order"] * (list(map(sorted, batches)) != list(map(sorted, alone["batches"])))
    gradients = [torch.tensor(one["gradients"], dtype=torch.float64).mean(0) for one in (ranks[0], alone)]
    error = ((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()).item()
    if not error <= EXACT:
        said.append(f"gradient {error:.2g}")
    said += ["class lost"] * (not ranks[0]["class_kept"])
    said += ["other texts"] * any(rank["wrong_names"] for rank in ranks)
    return ", ".join(said) or "exact"


def other_rows(case: Case, rows: int, batches: list[list[int]], drawn: list[list[Any]]) -> list[str]:
    """Count what the epoch has too often, and what it lacks."""
    expected = drawn[0] if drawn else measure(ONE_PROCESS, case, rows)["batches"]
    if isinstance(expected[0], list):
        expected = itertools.chain(*expected)
    due, seen = Counter(expected), Counter(itertools.chain(*batches))
    differences = {"twice": (seen - due).total(), "lost": (due - seen).total()}
    return [f"{count} {word}" for word, count in differences.items() if count]


def other_batches(case: Case, rows: int, ranks: list[Epoch], alone: Epoch) -> list[str]:
    """Hold ddp_patch to what it promises: the very batches of one process, on every rank."""
    if any(rank[key] != ranks[0][key] for rank in ranks for key in ("batches", "sizes", "correct", "length")):
        return ["ranks differ"]
    if case.seeds != "unseeded":
        alone = measure(ONE_PROCESS, case, rows)
    same = ("sizes", "correct", "length") if case.seeds == "unseeded" else ("batches", "sizes", "correct", "length")
    return [f"other {key}" for key in same if ranks[0][key] != alone[key]]


Facts = dict[str, Callable[[str, list[Epoch]], float]]
FACTS: Facts = {  # of the epoch, as rank 0's script sees it
    "rows of a full batch": lambda tool, ranks: max(map(len, global_batches(tool, ranks))),
    "`len(loader)`": lambda tool, ranks: ranks[0]["length"],
    "`correct / len(loader.dataset)`, all correct": lambda tool, ranks: (
        ranks[0]["correct"] / ranks[0]["dataset_length"]
    ),
    "rows that rank 0 loads": lambda tool, ranks: len(ranks[0]["loaded"]),
}
FACTS_OF = "shuffle, seeded"


def facts(tool: str, case: Case, rows: int, ranks: list[Epoch]) -> dict[str, str]:
    """Count what a script reads off its loader; the name of each says what one process has."""
    alone = measure(ONE_PROCESS, case, rows)
    return {f"{name} (one process: {fact(OURS, [alone]):g})": f"{fact(tool, ranks):g}" for name, fact in FACTS.items()}


def installed(package: str) -> str | None:
    """Give the version of a package, if it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def table(cells: dict[str, dict[str, str]]) -> str:
    """Render Markdown: a line per case, a column per tool."""
    lines = [["", *cells], ["---"] * (1 + len(cells))]
    lines += [[name, *(column.get(name, "not installed") for column in cells.values())] for name in cells[OURS]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


NOTES = f"""\
exact: every row that one process draws, once, and the gradient of the epoch to {EXACT:g}. Under ddp_patch also the very
batches of one process, in its order, on every rank; the others may draw in another order where the script shuffles.
twice, lost: rows too many and too few in one epoch, against the script's own batch of {BATCH} on one process.
gradient: largest relative error of the mean over the epoch's steps at fixed parameters, against one process whose batch
has as many rows as the tool's. other order: nothing shuffles, yet a global batch holds other rows than one process's.
unseeded: the script seeds nothing, so that every process starts from a random state of its own; then rank 0's draw is
what counts. hang: a rank waited for ever. class lost: the loader is no longer of the script's class."""


def main() -> None:
    """Measure every case under every tool and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes per tool (default: 2)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds until a case counts as hung (default: 60)")
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    rows = 3 * BATCH * arguments.ranks  # so that every tool's global batches are full ones
    numbers = [number for number, case in enumerate(CASES) if arguments.only in case.name]
    cells: dict[str, dict[str, str]] = {}
    failures = []
    for tool, how in TOOLS.items():
        cells[tool], read = {}, {}
        if installed(how.package) is None:
            continue
        found = run(tool, numbers, rows, arguments)
        for number, ranks in found.items():
            case = CASES[number]
            cells[tool][case.name] = judge(tool, case, rows, ranks)
            says = next((rank["says"] for rank in ranks if rank.get("error", "hang") != "hang"), "").strip()
            if says:
                failures.append(f"{tool}, {case.name}: {says.splitlines()[0]}")
            if case.name == FACTS_OF and not any("error" in rank for rank in ranks):
                read = facts(tool, case, rows, ranks)
        cells[tool] |= read
    versions = ", ".join(f"{how.package} {installed(how.package) or 'not installed'}" for how in TOOLS.values())
    text = "\n\n".join(
        [
            f"{datetime.datetime.now().astimezone():%Y-%m-%d}: {versions}, Python {platform.python_version()}; "
            f"{arguments.ranks} ranks on CPU, gloo, {rows} rows, batch_size={BATCH}",
            table(cells),
            NOTES,
            "\n".join(failures),
        ]
    ).rstrip()
    print(text)
    if arguments.write:
        arguments.write.write_text(text + "\n")
    wrong = [CASES[number].name for number in numbers if cells[OURS].get(CASES[number].name) != "exact"]
    if wrong:
        raise SystemExit(f"ddp_patch is not exact: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
