"""Read the files of all ranks, and say where they parted, where each of them is, and who waits for whom."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..job.recorder import Trace, read
from ..job.side_by_side import first_difference, table
from .waits import said_of_waits

USAGE = """\
usage: python -m ddp_patch trace FOLDER

Lays side by side what the ranks of a run recorded in FOLDER (DDP_PATCH_TRACE=FOLDER, or enable(trace="FOLDER")): the
points of the script at which they wait for each other. Shows the first in which they differ, or else the last ones, and
which rank the others wait for. Exit code: 0 if they do not differ, 1 if they do, 2 if there is nothing to read.
"""


def command(argv: Sequence[str]) -> int:
    """Run ``python -m ddp_patch trace`` and give its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if len(argv) != 1 or argv[0].startswith("-"):
        return _refuse("it takes one folder")
    try:
        traces = _read(Path(argv[0]))
    except ValueError as error:
        return _refuse(str(error))
    ranks = {trace.rank: trace.points for trace in traces}
    count = first_difference(ranks)
    last = max((number for points in ranks.values() for number in points), default=0)
    sys.stdout.write(_headline(traces, count, last) + "\n\n")
    sys.stdout.write(table(ranks, last if count is None else count))
    waits = said_of_waits(traces)
    if waits:
        sys.stdout.write(f"\n{waits}\n")
    return 0 if count is None else 1


def _read(folder: Path) -> list[Trace]:
    """Read the traces of one run.

    Raises:
        ValueError: if there are none, or those of several runs.
    """
    paths = sorted(folder.glob("rank*.trace"))
    if not paths:
        raise ValueError(f"{folder} holds no rank*.trace. Run the script with DDP_PATCH_TRACE={folder}")
    traces = []
    for path in paths:
        try:
            traces.append(read(path))
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise ValueError(
                f"{path} is not what a rank recorded ({error}). Remove it, and run the script again"
            ) from error
    traces.sort(key=lambda trace: trace.rank)
    newest = max(traces, key=lambda trace: trace.began)
    others = [trace.rank for trace in traces if trace.run != newest.run]
    if others and max(others) < newest.world_size:
        raise ValueError(
            f"the file of rank {others[0]} is of another run than that of rank {newest.rank}. "
            "Take one folder for each run, or copy the files of all hosts into it"
        )
    return [trace for trace in traces if trace.run == newest.run]  # a run before may have had more ranks


def _headline(traces: Sequence[Trace], count: int | None, last: int) -> str:
    size = traces[0].world_size
    missing = sorted(set(range(size)) - {trace.rank for trace in traces})
    said = [f"{size} ranks on {len({trace.host for trace in traces})} host(s), {last} points."]
    if missing:
        said.append(f"Ranks {', '.join(map(str, missing))} have no file here: copy those of all hosts into one folder.")
    if count is None:
        said.append("All came to the same points.")
    else:
        came = [trace for trace in traces if count in trace.points]
        if len(came) < len(traces) and len({trace.points[count].what for trace in came}) == 1:
            names = ", ".join(str(trace.rank) for trace in traces if count not in trace.points)
            said.append(f"The first difference is point {count}: rank {names} did not come to it.")
        else:
            said.append(f"The first difference is point {count}.")
    return " ".join(said)


def _refuse(why: str) -> int:
    sys.stderr.write(f"python -m ddp_patch trace: {why}.\n")
    return 2
