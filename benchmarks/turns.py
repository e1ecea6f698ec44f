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
    """A store that counts what it is asked."""

    def __init__(self, store: Any) -> None:
        self.store, self.looks, self.others = store, 0, 0

    def __getattr__(self, name: str) -> Any:
        """Count a method's calls."""
        method = getattr(self.store, name)

        def call(*args: Any) -> Any:
            self.looks += name == "check"
            self.others += name != "check"
            return method(*args)

        return call


def measure() -> None:
    """Append to files as one rank of several, and let rank 0 print what it took."""
    ddp_patch.enable()
    from ddp_patch.launch.job import Job  # noqa: PLC0415 — the job is there only now

    assert Job.current is not None
    attendance = Job.current.attendance
    asked = attendance._store = Asked(attendance._store)  # type: ignore[assignment]
    seconds = []
    for number in range(WARM + FILES):
        if number == WARM:
            asked.looks = asked.others = 0
        start = time.perf_counter()
        with open("log.txt", "a") as file:
            file.write("line\n")
        seconds.append(time.perf_counter() - start)
    attendance._store = asked.store
    median = statistics.median(seconds[WARM:])
    print(f"{ddp_patch.world_size():5d} {median * 1e3:9.2f} {asked.others / FILES:9.1f} {asked.looks / FILES:9.1f}")


def main(counts: list[int]) -> None:
    """Measure with each number of ranks."""
    print("ranks  ms (median)  requests of rank 0, and looks whether something is there")
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
