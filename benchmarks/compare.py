"""What does a training step cost under hand-written DDP, under Accelerate and under ddp_patch?

    python benchmarks/compare.py             # about four minutes
    python benchmarks/compare.py --quick     # does it run at all?

Every variant is two ranks of its own. Only one pair works at a time, a block of steps each in turn, so that whatever
else the machine does slows all of them alike; the others wait on a pipe. Blocks of one round are compared in pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from torch.distributed import TCPStore
from worker import SETTINGS, VARIANTS

RANKS = 2
START = 180.0  # seconds until the first answer: torch is imported by six processes at once
BLOCK = 60.0  # seconds for one block
BASE = "hand-written DDP"


@dataclass
class Pair:
    """The ranks of one variant, and the blocks they have measured."""

    variant: str
    ranks: list[subprocess.Popen[str]]
    logs: list[IO[str]]
    first: dict[str, Any] = field(default_factory=dict)  # rank 0's answer to the warm-up
    blocks: list[list[dict[str, Any]]] = field(default_factory=list)  # [round][rank]

    def ask(self, steps: int, within: float) -> list[dict[str, Any]]:
        """Let the ranks run a block, and wait for what they measured."""
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):  # it ended; _answer says how
                print(steps, file=rank.stdin, flush=True)
        end = time.monotonic() + within
        return [self._answer(index, end) for index in range(RANKS)]

    def _answer(self, index: int, end: float) -> dict[str, Any]:
        stream = self.ranks[index].stdout
        ready = select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]
        line = stream.readline() if ready else ""
        if line:
            return json.loads(line)
        said = ""
        for rank, log in enumerate(self.logs):
            log.seek(0)
            said += f"--- rank {rank}\n{log.read()[-4000:]}"
        raise SystemExit(f"{self.variant}: rank {index} {'ended' if ready else 'gave no answer in time'}.\n{said}")


@contextlib.contextmanager
def started(variant: str, setting: str) -> Iterator[Pair]:
    """Start the ranks of a variant; whatever happens, they are gone afterwards."""
    # The store lives here, as it does in torchrun's agent, so that its port is never guessed.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    given |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), variant, setting]
    with contextlib.ExitStack() as stack:
        pair = Pair(variant, [], [])
        for rank in range(RANKS):
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                command,
                env={**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C ends this process, which ends its workers
            )
            stack.callback(end, process)
            pair.ranks.append(process)
            pair.logs.append(log)
        yield pair


def end(process: subprocess.Popen[str]) -> None:
    """Kill a worker. There is nothing it could lose."""
    process.kill()
    process.wait()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def measure(setting: str, rounds: int, launches: int) -> list[Pair]:
    """Measure in fresh processes several times, as where a process lies in memory can cost it some percent."""
    pairs: dict[str, Pair] = {}
    for _ in range(launches):
        for pair in launch(setting, rounds):
            pair.blocks = [*(pairs[pair.variant].blocks if pair.variant in pairs else []), *pair.blocks]
            pairs[pair.variant] = pair
    return list(pairs.values())


def launch(setting: str, rounds: int) -> list[Pair]:
    """Start every variant, and let them take turns until each has measured a block per round."""
    block = SETTINGS[setting].block
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(started(variant, setting)) for variant in VARIANTS]
        for pair in pairs:
            pair.first = pair.ask(max(4, block // 2), START)[0]
        for turn in range(rounds):
            for index in range(len(pairs)):
                pair = pairs[(turn + index) % len(pairs)]  # nobody always comes first
                pair.blocks.append(pair.ask(block, BLOCK))
    return pairs


def busy_elsewhere() -> float:
    """Core-seconds that programs other than this one and its ended workers took so far; nan where it is not Linux."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return float("nan")
    user, nice, system, _idle, _wait, interrupts, soft, steal, *_ = counters.read_text().split()[1:11]
    everything = sum(map(int, (user, nice, system, interrupts, soft, steal))) / os.sysconf("SC_CLK_TCK")
    return everything - sum(os.times()[:4])


def step_times(block: list[dict[str, Any]]) -> list[float]:
    """Seconds per step. A late rank makes the other wait in the same step or the next, hence the mean over ranks."""
    return [statistics.mean(both) for both in zip(*(answer["seconds"] for answer in block), strict=True)]


def middle_and_tenth(pair: Pair) -> tuple[float, float]:
    """Median step, and the step that a tenth of all are faster than."""
    seconds = [second for block in pair.blocks for second in step_times(block)]
    return statistics.median(seconds), statistics.quantiles(seconds, n=10)[0]


def table_rows(setting: str, pairs: list[Pair]) -> Iterator[list[str]]:
    """Render one line per variant."""
    base = next(pair for pair in pairs if pair.variant == BASE)
    base_median, base_tenth = middle_and_tenth(base)
    base_rounds = [statistics.median(step_times(block)) for block in base.blocks]
    for pair in pairs:
        median, tenth = middle_and_tenth(pair)
        by_round = [statistics.median(step_times(block)) for block in pair.blocks]
        ratios = [own / other for own, other in zip(by_round, base_rounds, strict=True)]
        extra = [1e6 * (own - other) for own, other in zip(by_round, base_rounds, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        last = pair.blocks[-1]
        yield [
            setting,
            pair.variant,
            f"{1e3 * median:.3f}",
            f"{median / base_median:.3f}",
            f"{statistics.median(ratios):.3f}",
            "" if pair is base else f"{low:.3f}-{high:.3f}",
            "" if pair is base else f"{1e6 * (median - base_median):+.0f}",
            "" if pair is base else f"{statistics.median(extra):+.0f}",
            f"{1e3 * tenth:.3f}",
            f"{tenth / base_tenth:.3f}",
            *traffic(pair.first, last[0]),
            f"{statistics.mean(answer['loss'] for answer in last):.4f}",
        ]


def traffic(first: dict[str, Any], last: dict[str, Any]) -> list[str]:
    """What went over the wire per step, once the model had been found and DDP had settled its buckets."""
    steps = last["steps"] - first["steps"]
    per_step = {name: (last[name] - first[name]) / steps for name in last if name in first and name in COUNTED}
    return [f"{per_step[name]:{form}}" if name in per_step else "-" for name, form in COUNTED.items()]


COUNTED = {"buckets": ".2f", "bucket_bytes": ",.0f", "others": ".2f", "other_bytes": ",.0f"}

HEAD = [
    ["", "", "step", "", "paired", "", "extra", "paired", "tenth", "", "gradient", "", "other", "", "last"],
    [
        *("setting", "variant", "ms", "ratio", "ratio", "quartiles", "us", "us", "ms", "ratio"),
        *("buckets", "bytes", "calls", "bytes", "loss"),
    ],
]

NOTES = """\
step: median over all timed steps of the mean of both ranks; ratios and extra microseconds are to hand-written DDP.
paired: medians of blocks are compared within a round; then the median (and quartiles) over the rounds.
tenth: a tenth of the steps are faster than this. Look here when other programs were busy.
buckets, calls, bytes: collectives per step; hand-written DDP and Accelerate by the process group's sequence number
  (Accelerate's is a broadcast of the random state per epoch), ddp_patch by its own ledger.
last loss: mean over the last block. In ddp_patch the script sees the whole batch's; in the others every rank sees that
  of its own rows, and the mean over the ranks is printed. Each variant shuffles in another order."""


def aligned(lines: list[list[str]]) -> str:
    """Pad the columns: two of words, the others of numbers."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        + [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def main() -> None:
    """Measure every setting and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="blocks of each variant per launch (default: 8)")
    parser.add_argument("--launches", type=int, default=4, help="times to start all processes anew (default: 4)")
    parser.add_argument("--setting", action="append", choices=[*SETTINGS], help="only this one (default: all)")
    parser.add_argument("--quick", action="store_true", help="two rounds of one launch, to see that it runs")
    arguments = parser.parse_args()
    rounds, launches = (2, 1) if arguments.quick else (max(2, arguments.rounds), max(1, arguments.launches))
    before, start = busy_elsewhere(), time.monotonic()
    measured = {setting: measure(setting, rounds, launches) for setting in arguments.setting or SETTINGS}
    share = (busy_elsewhere() - before) / (time.monotonic() - start) / (os.cpu_count() or 1)
    lines = [line for setting, pairs in measured.items() for line in table_rows(setting, pairs)]
    print(f"{datetime.datetime.now().astimezone():%Y-%m-%d}, {os.cpu_count()} CPU cores, {platform.machine()}")
    print(f"torch {version('torch')}, accelerate {version('accelerate')}, Python {platform.python_version()}")
    print(f"{RANKS} ranks, gloo, float32, one thread and one core per rank, {launches} launches of {rounds} rounds")
    if not math.isnan(share):
        print(f"other programs took {max(0.0, share):.0%} of the cores meanwhile")
    for setting, pairs in measured.items():
        size = SETTINGS[setting]
        parameters = pairs[0].first["parameters"]
        print(f"{setting}: {parameters:,} parameters, batch {size.batch}, {size.block} timed steps per round")
    print(f"\n{aligned([*HEAD, *lines])}\n\n{NOTES}")


if __name__ == "__main__":
    main()
