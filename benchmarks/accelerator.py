"""What does a step cost on accelerators, against hand-written DDP?

    python benchmarks/accelerator.py                 # one rank for each device, or two that share the only one
    NCCL_MULTI_RANK_GPU_ENABLE=1 python ...          # which talk by NCCL (2.30 and later), not by gloo
    python benchmarks/accelerator.py --nproc 2 --small   # does it run at all? also on the CPU

ResNet-50 and GPT-2 small on synthetic data. Jobs of each kind are measured in turn, in several rounds, and their median
counts. Exposed communication is what a step takes longer than hand-written DDP's without any
(``no_sync``). One table, with device, date and versions.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device(torch.accelerator.current_accelerator() or "cpu")
WARM = 5  # steps
VARIANTS = ("hand-written DDP", "without communication", "ddp_patch")
START = 1200.0  # seconds


class Bottleneck(nn.Module):
    """Three convolutions and a way around them (He et al. 2016, https://arxiv.org/abs/1512.03385)."""

    def __init__(self, wide: int, inner: int, stride: int) -> None:
        super().__init__()
        out = inner * 4
        self.path = nn.Sequential(
            *(nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        around = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.around = around if stride > 1 or wide != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Both ways."""
        return F.relu(self.path(x) + self.around(x))


def resnet(blocks: tuple[int, ...], width: int) -> nn.Module:
    """ResNet-50 with blocks of 3, 4, 6 and 3, and a width of 64."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    wide = width
    for stage, count in enumerate(blocks):
        for index in range(count):
            inner = width << stage
            layers.append(Bottleneck(wide, inner, 2 if stage and not index else 1))
            wide = inner * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))


class GPT(nn.Module):
    """GPT-2 with its loss in forward (Radford et al. 2019): 12 layers of 768 make the small one."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int = 50304) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, bias=False
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: Tensor, targets: Tensor) -> Tensor:
        """Loss of the next words."""
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        logits = self.head(self.blocks(x, mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@dataclass
class Work:
    """A model, the whole batch that it learns from, and its loss."""

    model: nn.Module
    batch: tuple[Tensor, Tensor]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]


def work(name: str, rows: int, small: bool) -> Work:
    """Make one, the same on every rank."""
    torch.manual_seed(0)
    if name == "ResNet-50":
        size = 32 if small else 224
        model = resnet((1, 1, 1, 1), 8) if small else resnet((3, 4, 6, 3), 64)
        x = torch.randn(rows, 3, size, size).to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
        return Work(model, (x, torch.randint(0, 1000, (rows,))), lambda m, x, y: F.cross_entropy(m(x), y))
    model = GPT(2, 64, 4, 32, 500) if small else GPT(12, 768, 12, 1024)
    text = torch.randint(0, 500, (rows, 33 if small else 1025))
    return Work(model, (text[:, :-1], text[:, 1:]), lambda m, x, y: m(x, y))


def measure(name: str, rows: int, variant: str, steps: int, small: bool, shared: bool) -> Iterator[dict[str, float]]:
    """Train as one rank: what the first step took, and one of a block of steps."""
    ours, nproc = variant == "ddp_patch", int(os.environ["WORLD_SIZE"])
    if ours:
        import ddp_patch  # noqa: PLC0415 — one variant's

        ddp_patch.enable(share_devices=shared)
    else:
        device = int(os.environ["LOCAL_RANK"]) % max(1, torch.accelerator.device_count())
        if DEVICE.type != "cpu":
            torch.accelerator.set_device_index(device)
        by_gloo = DEVICE.type == "cpu" or (shared and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1")
        dist.init_process_group("gloo" if by_gloo else None)
    made = work(name, rows, small)
    x, y = made.batch
    if not ours:
        own = slice(dist.get_rank() * rows // nproc, (dist.get_rank() + 1) * rows // nproc)
        x, y = x[own], y[own]
    x, y = x.to(DEVICE), y.to(DEVICE)
    module: nn.Module = made.model.to(DEVICE)
    if not ours:
        synced = nn.SyncBatchNorm.convert_sync_batchnorm(module) if DEVICE.type == "cuda" else module
        module = DistributedDataParallel(synced)
    optimizer = torch.optim.SGD(made.model.parameters(), lr=1e-3)

    def step() -> None:
        silent = module.no_sync() if variant == "without communication" else nullcontext()  # type: ignore[operator]
        with silent, torch.autocast(DEVICE.type, torch.bfloat16):
            loss = made.loss(module, x, y)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()

    def done() -> None:
        if DEVICE.type != "cpu":
            torch.accelerator.synchronize()

    peak = torch.cuda.max_memory_allocated if DEVICE.type == "cuda" else lambda: 0
    start = time.perf_counter()
    step()
    done()
    yield {"seconds": time.perf_counter() - start, "first": peak()}
    for _ in range(WARM):
        step()
    done()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    done()
    yield {"seconds": (time.perf_counter() - start) / steps, "later": peak()}


def started(name: str, rows: int, variant: str, given: argparse.Namespace, nproc: int) -> subprocess.Popen[str]:
    """Start the ranks of a variant; rank 0 speaks."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    options = [
        "--name",
        name,
        "--rows",
        str(rows),
        "--variant",
        variant,
        "--steps",
        str(given.steps),
        *(["--small"] if given.small else []),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, __file__, *options]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nproc", type=int, default=max(2, torch.accelerator.device_count()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--small", action="store_true", help="models of a few thousand parameters")
    for hidden in ("--name", "--rows", "--variant"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        is_first = os.environ["RANK"] == "0"  # asked for before ddp_patch stands aside for it
        shared = torch.accelerator.device_count() < int(os.environ["WORLD_SIZE"]) and DEVICE.type != "cpu"
        for told in measure(given.name, int(given.rows), given.variant, given.steps, given.small, shared):
            if is_first:
                print(json.dumps(told), flush=True)
        return
    name = f"{torch.cuda.get_device_name()} ({_below_torch()})" if DEVICE.type == "cuda" else str(DEVICE)
    print(f"{given.nproc} ranks, {torch.accelerator.device_count()} of {name}, {datetime.date.today()}, torch", end=" ")
    columns = [*VARIANTS, "ratio", "exposed: DDP, ddp_patch", "memory: first step, later"]
    print(f"{torch.__version__}, bfloat16\n\n| | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|")
    for model, rows in (("ResNet-50", 64), ("GPT-2 small", 8)):
        print_row(model, rows * given.nproc, given)


def _below_torch() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}"


def print_row(model: str, rows: int, given: argparse.Namespace) -> None:
    """Measure a model in all variants, in turn."""
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    memory: dict[str, dict[str, float]] = {}  # most that was in use: in the first step, and in later ones
    for _ in range(given.rounds if not given.small else 1):
        for variant in VARIANTS:
            ranks = started(model, rows, variant, given, given.nproc)
            told, _ = ranks.communicate(timeout=START)
            assert ranks.returncode == 0, f"{variant} of {model} failed"
            first, last = (json.loads(line) for line in told.splitlines())
            seconds[variant].append(last["seconds"])
            memory[variant] = {"first": first["first"], "later": last["later"]}
    hand, alone, ours = (statistics.median(seconds[variant]) * 1e3 for variant in VARIANTS)
    by_hand, own = memory[VARIANTS[0]], memory[VARIANTS[2]]
    more = ", ".join(f"{own[when] / by_hand[when] if by_hand[when] else float('nan'):.2f}" for when in by_hand)
    print(f"| {model}, {rows} rows | {hand:.1f} ms | {alone:.1f} ms | {ours:.1f} ms | {ours / hand:.3f} ", end="")
    print(f"| {hand - alone:.1f}, {ours - alone:.1f} ms | {more} |", flush=True)


if __name__ == "__main__":
    main()
