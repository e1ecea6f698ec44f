"""One rank of one variant: trains a block of steps when told to, and tells how long each took.

Started by ``compare.py``, which writes the number of steps on standard input and reads one JSON line per block.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ddp_patch


@dataclass(frozen=True)
class Setting:
    """What is trained."""

    build: Callable[[], nn.Module]
    sample: tuple[int, ...]  # shape of one row
    batch: int  # rows of the global batch
    batches: int  # global batches of an epoch
    block: int  # timed steps before the next variant has its turn


def small_cnn() -> nn.Module:
    """Three convolutions and two linear layers on 3x32x32 images, without BatchNorm."""
    convolutions = [nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)]
    layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def small_mlp() -> nn.Module:
    """Three linear layers whose work is next to nothing, so that the step is all overhead."""
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


SETTINGS = {
    "heavy": Setting(small_cnn, sample=(3, 32, 32), batch=128, batches=16, block=5),
    "tiny": Setting(small_mlp, sample=(32,), batch=64, batches=64, block=50),
}


def rows(setting: Setting) -> TensorDataset:
    """Make noise around one pattern per class, so that the loss falls."""
    y = torch.randint(10, (setting.batches * setting.batch,))
    patterns = torch.randn(10, *setting.sample) / 2
    return TensorDataset(patterns[y] + torch.randn(len(y), *setting.sample), y)


def train(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    new_epoch: Callable[[int], object] = lambda epoch: None,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Iterator[float]:
    """Run the loop that all variants share; yields the running loss after every step."""
    running = 0.0
    for epoch in itertools.count():
        new_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            running += loss.item()
            yield running


def by_hand(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """What a careful author writes: a sampler, a share of the batch, a wrapped model, a loss of this rank's rows."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset, model = rows(setting), DistributedDataParallel(setting.build())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=setting.batch // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, train(model, loader, optimizer, new_epoch=sampler.set_epoch)


def with_accelerate(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """What Accelerate's guide says, with the batch size of the one process."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    torch.manual_seed(0)
    dataset, model = rows(setting), setting.build()
    loader = DataLoader(dataset, batch_size=setting.batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return model, train(model, loader, optimizer, backward=accelerator.backward)


def patched(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """The script of the one process, and a line."""
    ddp_patch.enable()
    torch.manual_seed(0)
    dataset, model = rows(setting), setting.build()
    loader = DataLoader(dataset, batch_size=setting.batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, train(model, loader, optimizer)


VARIANTS = {"hand-written DDP": by_hand, "Accelerate": with_accelerate, "ddp_patch": patched}


def traffic(model: nn.Module, steps: int) -> dict[str, int]:
    """Collectives and bytes of this rank since it started."""
    if isinstance(model, DistributedDataParallel):
        # No public name in torch 2.13 tells either; bucket sizes stand as "4194304,262144".
        sizes = [int(size) for size in model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "").split(",") if size]
        calls = dist.group.WORLD._get_sequence_number_for_group()
        return {
            "buckets": steps * len(sizes),
            "bucket_bytes": steps * sum(sizes),
            "others": calls - steps * len(sizes),
        }
    ledger = ddp_patch.report().ledger
    buckets, bucket_bytes = ledger.collectives["gradient bucket"], ledger.collective_bytes["gradient bucket"]
    return {
        "buckets": buckets,
        "bucket_bytes": bucket_bytes,
        "others": ledger.collectives.total() - buckets,
        "other_bytes": ledger.collective_bytes.total() - bucket_bytes,
    }


def stay_on_one_core() -> None:
    """Give this rank a core of its own where there are enough, so that no two ranks wake up on the same (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= int(os.environ["WORLD_SIZE"]):
            os.sched_setaffinity(0, {cores[int(os.environ["RANK"])]})


def serve(variant: str, setting: str) -> None:
    """Answer every number of steps on standard input with a line of JSON, until the input ends."""
    # Whatever a library prints goes to standard error, so that only answers are read as answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    stay_on_one_core()
    model, steps = VARIANTS[variant](SETTINGS[setting])
    done = 0
    for line in sys.stdin:
        before = next(steps)  # not timed: the other variants have had the caches meanwhile
        running, seconds = before, []
        for _ in range(int(line)):
            start = time.perf_counter()
            running = next(steps)
            seconds.append(time.perf_counter() - start)
        done += 1 + len(seconds)
        answer = {
            "seconds": seconds,
            "loss": (running - before) / len(seconds),
            "steps": done,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **traffic(model, done),
        }
        answers.write(json.dumps(answer) + "\n")
    # A DDP instance alive at exit aborts the process (torch 2.13), and there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    serve(*sys.argv[1:])
