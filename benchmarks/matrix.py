"""Which rows, and which gradient, does each tool make of a loader that was written for one process?

    python benchmarks/matrix.py                          # about four minutes
    python benchmarks/matrix.py --ranks 3 --only sampler
    python benchmarks/matrix.py --write matrix.md

Every tool gets the script of the one process plus what its guide says to add, and nothing repaired by hand. The cases
are in ``matrix_cases.py``, the tools in ``matrix_tools.py``. Exit code 1 if ddp_patch is not exact everywhere, or if a
rank of its local view has other rows or gradients than under DDP by hand that are no fewer repeated or lost ones.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO

from matrix_by_hand import compared, in_lines
from matrix_cases import CASES
from matrix_rows import BATCH, PER_RANK
from matrix_tools import COLUMNS, DIVIDED, LOCAL, OURS, TOOLS
from matrix_verdicts import EXACT, READ, Epoch, facts, judge
from torch.distributed import TCPStore


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
- exact: every row that one process draws, as often as it does, and its gradient to {EXACT:g}. Under ddp_patch also
  the very batches of one process, one by one, on every rank; the others may draw other ones if the case shuffles.
- twice, lost: rows too many and too few in one epoch, against batch_size={BATCH} on one process.
- gradient: largest relative error at fixed parameters. For the others of the mean over the epoch's steps, against one
  process whose batches are the script's or as large as the tool's (see "rows of a full batch"), whichever is nearer.
- other order: nothing shuffles, yet a global batch holds other rows than one process's. (Ignite shuffles by default.)
- unseeded: the script seeds nothing, so every process starts from a random state of its own (these cells vary from run
  to run); what rank 0's sampler drew is what counts.
- ddp_patch, local view: the ranks share the script's batches, as Ignite's do, in place of having one each. What it has
  in common with DDP by hand is below.
- sampler lost, class lost: the script's own sampler is not asked; the loader is no longer of the script's class.
- hang: a rank waits for ever."""


def failure(ranks: list[Epoch]) -> str:
    """Give the message of the first rank that failed by an exception; empty if none did."""
    errors = [rank for rank in ranks if rank.get("error", "hang") != "hang"]
    return f"{errors[0]['error']}: {errors[0]['says'].strip():.160}" if errors else ""


def column(tool: str, found: dict[int, list[Epoch]], rows: int) -> tuple[dict[str, str], list[str]]:
    """Judge what the ranks of one tool saw.

    Returns:
        its column of the table, and the messages of what it raised.
    """
    cells, read, raised = {}, {}, {}
    for number, ranks in found.items():
        case = CASES[number]
        cells[case.name] = judge(tool, case, rows, ranks)
        if case.name in READ and not any("error" in rank for rank in ranks):
            read |= facts(tool, case, rows, ranks)
        if failure(ranks):
            raised.setdefault(failure(ranks), []).append(case.name)
    return cells | read, [f"- {tool}, {'; '.join(names)}: `{message}`" for message, names in raised.items()]


def main() -> None:
    """Measure every case under every tool and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes per tool (default: 2)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds until a case counts as hung (default: 60)")
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    numbers = [number for number, case in enumerate(CASES) if arguments.only in case.name]
    rows = PER_RANK * arguments.ranks
    found = {tool: run(tool, numbers, rows, arguments) if installed(TOOLS[tool].package) else {} for tool in TOOLS}
    columns = {tool: column(tool, found[tool], rows) for tool in COLUMNS}
    cells = {tool: its for tool, (its, _) in columns.items()}
    beside = {
        CASES[number].name: compared(CASES[number], rows, found[DIVIDED][number], found[LOCAL][number])
        for number in numbers
    }
    packages = dict.fromkeys(how.package for how in TOOLS.values())
    versions = ", ".join(f"{package} {installed(package) or 'not installed'}" for package in packages)
    head = (
        f"Measured on {datetime.datetime.now().astimezone():%Y-%m-%d}: {versions}, Python {platform.python_version()}; "
        f"{arguments.ranks} ranks on CPU, gloo, batch_size={BATCH}, {rows} rows."
    )
    raised = "\n".join(line for _, lines in columns.values() for line in lines)
    text = "\n\n".join([head, table(cells), NOTES, in_lines({name: how for name, (how, _) in beside.items()}), raised])
    print(text.rstrip())
    if arguments.write:
        arguments.write.write_text(text.rstrip() + "\n")
    wrong = [CASES[number].name for number in numbers if cells[OURS].get(CASES[number].name) != "exact"]
    worse = [name for name, (_, may_be) in beside.items() if not may_be]
    if wrong or worse:
        raise SystemExit(
            f"ddp_patch is not exact: {', '.join(wrong) or 'nowhere'}. "
            f"Its local view is not DDP by hand: {', '.join(worse) or 'nowhere'}."
        )


if __name__ == "__main__":
    main()
