"""What does a file that is opened, appended to and closed cost, by the number of ranks?

    python benchmarks/turns.py            # 2 to 16 ranks
    python benchmarks/turns.py 2 8 32 64  # as many as memory allows: 0.3 GB each

Every rank comes to each of these effects, rank 0 acts, and all get what it got, through the job's store. Ranks have no
model here. They may be more than the machine has cores, which then has most of the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ddp_patch

FILES, WARM = 40, 10
START = 600.0  # seconds


class Asked:
    """A store, or the waits at it, that counts what is asked of it."""

    def __init__(self, asked: Any) -> None:
        self.asked, self.count = asked, 0

    def __getattr__(self, name: str) -> Any:
        """Count a method's calls."""
        method = getattr(self.asked, name)

        def call(*args: Any) -> Any:
            self.count += 1
            return method(*args)

        return call


def measure() -> None:
    """Append to files as one rank of several, and let rank 0 print what it took."""
    ddp_patch.enable()
    from ddp_patch.job.job import Job  # noqa: PLC0415 — the job is there only now

    assert Job.current is not None
    rank_status = Job.current.rank_status
    store = rank_status._store = Asked(rank_status._store)  # type: ignore[assignment]
    waiting = rank_status._waiting = Asked(rank_status._waiting)  # type: ignore[assignment]
    seconds, spent = [], 0.0
    for number in range(WARM + FILES):
        if number == WARM:
            store.count = waiting.count = 0
            spent = time.process_time()
        start = time.perf_counter()
        with open("log.txt", "a") as file:
            file.write("line\n")
        seconds.append(time.perf_counter() - start)
    spent = time.process_time() - spent
    rank_status._store, rank_status._waiting = store.asked, waiting.asked
    median = statistics.median(seconds[WARM:])
    counts = f"{store.count / FILES:9.1f} {waiting.count / FILES:9.1f}"
    print(f"{ddp_patch.world_size():5d} {median * 1e3:9.2f} {counts} {spent / FILES * 1e3:9.2f}")


def main(counts: list[int]) -> None:
    """Measure with each number of ranks."""
    print("ranks  ms (median)  rank 0: requests, waits, ms of a core")
    for count in counts:
        environ = {**os.environ, "DDP_PATCH_NPROC": str(count), "OMP_NUM_THREADS": "1", "TURNS_RANK": "1"}
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(Path(__file__).resolve())]
            subprocess.run(command, cwd=folder, env=environ, timeout=START, check=True)


if __name__ == "__main__":
    if os.environ.get("TURNS_RANK"):
        measure()
    else:
        main([int(text) for text in sys.argv[1:]] or [2, 4, 8, 16])
