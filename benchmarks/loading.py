"""How fast do batches reach the ranks?

    python benchmarks/loading.py            # about two minutes
    python benchmarks/loading.py --quick

A dataset that computes for 2 ms per item, on 2 ranks, in blocks that alternate within one pair of processes:

- rows that are dealt, against hand-written DistributedSampler with as many workers in all;
- a collate function that cannot be dealt, read by one rank and handed over, against one process with as many workers;
- large batches that cost nothing to make (8 MB each), handed over, against one process.

Ratios are of rates: more than 1 is faster than the other. Memory is the peak of each rank's process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ddp_patch
from ddp_patch.job.job import Job

RANKS, BATCH, BATCHES = 2, 32, 16
Loader = DataLoader[torch.Tensor]


class Slow(Dataset[torch.Tensor]):
    """2 ms of computing per item."""

    def __len__(self) -> int:
        """All batches' rows."""
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        """Compute."""
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return torch.full((64,), float(index))


class Large(Slow):
    """256 KB per item, for nothing."""

    row = torch.ones(1 << 16)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Give the same memory."""
        return self.row


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    """Do what the default does, which nobody can know."""
    return torch.stack(samples)


def main() -> None:
    """Start the ranks, and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each variant (default: 8)")
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it runs")
    given = parser.parse_args()
    rounds = 2 if given.quick else given.rounds
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", __file__]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LOADING_ROUNDS": str(rounds), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPU cores, {RANKS} ranks, {rounds} rounds\n")
    print("| case | workers in all | against | rate | quartiles |\n|---|---|---|---|---|")
    answer = json.loads(done.stdout.splitlines()[-1])
    for case, workers, other, ratios in answer["cases"]:
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {case} | {workers} | {other} | {middle:.2f} | {low:.2f}-{high:.2f} |")
    print(f"\nPeak memory per rank: {', '.join(f'{size / 1024:.0f} MB' for size in answer['memory'])}")


def measure() -> None:
    """Be one rank: run every case, and let rank 0 print the ratios of each round."""
    ddp_patch.enable()
    rank = ddp_patch.rank()
    answers = []
    for workers in (0, 2):
        data = Slow()
        share = DistributedSampler(data, RANKS, rank)
        split: Loader = DataLoader(data, BATCH // RANKS, sampler=share, num_workers=workers // RANKS)
        dealt: Loader = DataLoader(Slow(), BATCH, num_workers=workers)
        ratios = compared(lambda dealt=dealt: seconds(dealt), lambda split=split: seconds(split))  # type: ignore[misc]
        answers.append(["rows dealt", workers, "DistributedSampler", ratios])
    for name, data, workers in (
        ("own collate_fn", Slow(), 0),
        ("own collate_fn", Slow(), 2),
        ("own collate_fn, 8 MB batches", Large(), 2),
    ):
        loader: Loader = DataLoader(data, BATCH, num_workers=workers, collate_fn=collate)

        def alone(loader: Any = loader) -> float:
            return seconds(loader._get_iterator() if rank == 0 else [])  # torch's own, past ddp_patch

        answers.append([name, workers, "one process", compared(lambda it=loader: seconds(it), alone)])  # type: ignore[misc]
    memory: list[int | None] = [None] * RANKS
    dist.all_gather_object(memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, group=ranks())
    if rank == 0:
        print(json.dumps({"cases": answers, "memory": memory}))


def compared(mine: Callable[[], float], theirs: Callable[[], float]) -> list[float]:
    """Run both in turns; gives their time over mine, in each round."""
    mine(), theirs()
    ratios = []
    for turn in range(int(os.environ["LOADING_ROUNDS"])):
        order = (mine, theirs) if turn % 2 else (theirs, mine)
        times = {variant: variant() for variant in order}
        ratios.append(times[theirs] / times[mine])
    return ratios


def ranks() -> dist.ProcessGroup:
    """Give the job's own group: torch's default one is out of sight."""
    assert Job.current is not None
    return Job.current.group


def seconds(batches: Iterable[torch.Tensor]) -> float:
    """Time one epoch on the slowest rank."""
    dist.barrier(ranks())
    began = time.perf_counter()
    for batch in batches:
        assert len(batch)
    took = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, ranks())
    return float(took)


if __name__ == "__main__":
    if "LOADING_ROUNDS" in os.environ:
        measure()
    else:
        main()
