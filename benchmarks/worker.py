"""One rank of one variant: trains a block of steps when told to, and tells how long each took.

Started by ``compare.py``, which writes the number of steps on standard input and reads one JSON line per block.
"""

from __future__ import annotations

import importlib.util
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
    rows: Callable[[int], TensorDataset]
    batch: int  # rows of the global batch
    batches: int  # global batches of an epoch
    block: int  # timed steps before the next variant has its turn
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda model, x, y: F.cross_entropy(model(x), y)


def small_cnn() -> nn.Module:
    """Three convolutions and two linear layers on 3x32x32 images, without BatchNorm."""
    convolutions = [nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)]
    layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def mlp(layers: int) -> Callable[[], nn.Module]:
    """Linear layers whose work is next to nothing, so that the step is all overhead."""

    def build() -> nn.Module:
        hidden = [layer for _ in range(layers - 1) for layer in (nn.Linear(32, 32), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(32, 10))

    return build


def like(*sample: int) -> Callable[[int], TensorDataset]:
    """Noise around one pattern per class, so that the loss falls."""

    def rows(count: int) -> TensorDataset:
        y = torch.randint(10, (count,))
        patterns = torch.randn(10, *sample) / 2
        return TensorDataset(patterns[y] + torch.randn(len(y), *sample), y)

    return rows


def texts(count: int) -> TensorDataset:
    """Texts of 64 tokens, each of which tells the next one, and that shifted by one."""
    starts, strides = torch.randint(96, (count, 1)), torch.randint(1, 4, (count, 1))
    tokens = (starts + strides * torch.arange(65)) % 96
    return TensorDataset(tokens[:, :-1].clone(), tokens[:, 1:].clone())


def labelled_texts(count: int) -> TensorDataset:
    """The same, and how many tokens further the next one is."""
    tokens = texts(count).tensors[0]
    return TensorDataset(tokens, (tokens[:, 1] - tokens[:, 0]) % 96 - 1)


class Block(nn.Module):
    """A transformer's, by hand, as nanoGPT has it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and feed forward."""
        size, length, width = x.size()
        parts = self.attention(self.norms[0](x)).split(width, dim=2)
        q, k, v = (part.view(size, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.projection(y.transpose(1, 2).contiguous().view(size, length, width))
        return x + self.feed(self.norms[1](x))


class Transformer(nn.Module):
    """GPT or BERT, which computes its loss in forward where it is given targets."""

    def __init__(self, causal: bool, width: int = 192, heads: int = 6, depth: int = 4) -> None:
        super().__init__()
        self.causal = causal
        self.parts = nn.ModuleDict({"tokens": nn.Embedding(96, width), "places": nn.Embedding(64, width)})
        self.blocks = nn.ModuleList([Block(width, heads, causal) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 96 if causal else 3, bias=False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Give logits and the loss."""
        h = self.parts["tokens"](x) + self.parts["places"](torch.arange(x.size(1)))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h) if self.causal else self.norm(h)[:, 0])
        return logits, None if y is None else F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


class Reader(nn.Module):
    """A two-layer LSTM with dropout that classifies texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(96, 128)
        self.lstm = nn.LSTM(128, 192, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify by the last state."""
        return self.head(self.lstm(self.tokens(x))[0][:, -1])


def loss_inside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What forward computed."""
    return model(x, y)[1]


def loss_outside(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """As most scripts have it."""
    logits = model(x)[0]
    return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


SETTINGS = {
    "cnn": Setting(small_cnn, like(3, 32, 32), batch=128, batches=16, block=5),
    "gpt, loss inside": Setting(lambda: Transformer(causal=True), texts, 32, 16, 4, loss_inside),
    "gpt, loss outside": Setting(lambda: Transformer(causal=True), texts, 32, 16, 4, loss_outside),
    "bert with labels": Setting(lambda: Transformer(causal=False), labelled_texts, 32, 16, 4, loss_inside),
    "lstm": Setting(Reader, labelled_texts, batch=64, batches=16, block=4),
    "6 tensors": Setting(mlp(3), like(32), batch=64, batches=64, block=50),
    "300 tensors": Setting(mlp(150), like(32), batch=64, batches=64, block=20),
    "1000 tensors": Setting(mlp(500), like(32), batch=64, batches=64, block=10),
}


def train(
    setting: Setting,
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
            loss = setting.loss(model, x, y)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            running += loss.item()
            yield running


def by_hand(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """What a careful author writes: a sampler, a share of the batch, a wrapped model, a loss of this rank's rows."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset, model = setting.rows(setting.batch * setting.batches), DistributedDataParallel(setting.build())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=setting.batch // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, train(setting, model, loader, optimizer, new_epoch=sampler.set_epoch)


def with_accelerate(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """What Accelerate's guide says, with the batch size of the one process."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    torch.manual_seed(0)
    dataset, model = setting.rows(setting.batch * setting.batches), setting.build()
    loader = DataLoader(dataset, batch_size=setting.batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return model, train(setting, model, loader, optimizer, backward=accelerator.backward)


def patched(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """The script of the one process, and a line."""
    ddp_patch.enable()
    torch.manual_seed(0)
    dataset, model = setting.rows(setting.batch * setting.batches), setting.build()
    loader = DataLoader(dataset, batch_size=setting.batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, train(setting, model, loader, optimizer)


def with_fabric(setting: Setting) -> tuple[nn.Module, Iterator[float]]:
    """What Fabric's guide says, with the batch size of the one process."""
    from lightning.fabric import Fabric  # noqa: PLC0415 — an extra

    # Its own store would look for one that is not there yet.
    dist.init_process_group("gloo")
    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    torch.manual_seed(0)
    dataset, model = setting.rows(setting.batch * setting.batches), setting.build()
    loader = DataLoader(dataset, batch_size=setting.batch // fabric.world_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = fabric.setup(model, optimizer)
    return model, train(setting, model, fabric.setup_dataloaders(loader), optimizer, backward=fabric.backward)


VARIANTS = {"hand-written DDP": by_hand, "Accelerate": with_accelerate, "ddp_patch": patched}
if importlib.util.find_spec("lightning"):  # pip install lightning
    VARIANTS["Fabric"] = with_fabric


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
