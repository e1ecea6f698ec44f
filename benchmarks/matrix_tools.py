"""The script of the one process, what each tool's guide adds to it, and an epoch of either."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import matrix_careful
import numpy as np
import torch
from matrix_cases import Case, Options
from matrix_rows import Linear, drawn, loaded
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset


class Prepared(NamedTuple):
    """What the script trains with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: DataLoader
    backward: Callable[[Tensor], object] = Tensor.backward


class Script(NamedTuple):
    """What the script of the one process makes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    dataset: Dataset
    options: Options
    loader: type[DataLoader]


@dataclass(frozen=True)
class Tool:
    """What is added to the script."""

    package: str  # as pip knows it
    module: str
    start: Callable[[ModuleType], Any]  # on top of the script
    prepare: Callable[[Any, Script], Prepared]  # where the loader is made
    divides: bool = False  # batch_size is divided among the ranks by hand


def as_written(_started: Any, script: Script) -> Prepared:
    """Train as the one process does."""
    return Prepared(script.model, script.optimizer, script.loader(script.dataset, **script.options))


def by_hand(_started: Any, script: Script) -> Prepared:
    """Wrap the model and deal the dataset, where DistributedSampler has room for what the script asked."""
    options = dict(script.options)
    if not {"sampler", "batch_sampler"} & set(options) and not isinstance(script.dataset, IterableDataset):
        options["sampler"] = DistributedSampler(script.dataset, shuffle=options.pop("shuffle", False))
    model = DistributedDataParallel(script.model)
    return Prepared(model, script.optimizer, script.loader(script.dataset, **options))


def carefully(_started: Any, script: Script) -> Prepared:
    """Wrap the model and deal whatever the script draws from."""
    size = max(1, (script.options.get("batch_size") or getattr(script.options.get("batch_sampler"), "batch_size", 1)))
    dataset, options = matrix_careful.dealt(script.dataset, script.options, size)
    return Prepared(DistributedDataParallel(script.model), script.optimizer, script.loader(dataset, **options))


def with_accelerate(accelerator: Any, script: Script) -> Prepared:
    """Prepare everything, as Accelerate's quick tour does."""
    written = as_written(None, script)
    return Prepared(*accelerator.prepare(*written[:3]), accelerator.backward)


def start_fabric(fabric: ModuleType) -> Any:
    """Launch, as Fabric's guide does."""
    started = fabric.Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    started.launch()
    return started


def with_fabric(fabric: Any, script: Script) -> Prepared:
    """Set everything up, as Fabric's guide does."""
    written = as_written(None, script)
    model, optimizer = fabric.setup(written.model, written.optimizer)
    return Prepared(model, optimizer, fabric.setup_dataloaders(written.loader), fabric.backward)


def start_ignite(idist: ModuleType) -> ModuleType:
    """Initialize, as Ignite's guide does."""
    idist.initialize("gloo")
    return idist


def with_ignite(idist: ModuleType, script: Script) -> Prepared:
    """Let auto_* make everything, as Ignite's guide does."""
    loader = idist.auto_dataloader(script.dataset, **script.options)
    return Prepared(idist.auto_model(script.model), idist.auto_optim(script.optimizer), loader)


OURS, LOCAL = "ddp_patch", "ddp_patch, local view"
BY_HAND, DIVIDED = "DDP by hand", "careful DDP by hand, batch_size // ranks"
TOOLS = {
    OURS: Tool("ddp-patch", "ddp_patch", lambda ddp_patch: ddp_patch.enable(), as_written),
    "Accelerate": Tool("accelerate", "accelerate", lambda library: library.Accelerator(cpu=True), with_accelerate),
    "Fabric": Tool("lightning-fabric", "lightning_fabric", start_fabric, with_fabric),
    "Ignite": Tool("pytorch-ignite", "ignite.distributed", start_ignite, with_ignite),
    BY_HAND: Tool("torch", "torch.distributed", lambda dist: dist.init_process_group("gloo"), by_hand),
    DIVIDED: Tool("torch", "torch.distributed", matrix_careful.start, carefully, divides=True),
    LOCAL: Tool("ddp-patch", "ddp_patch", lambda ddp_patch: ddp_patch.enable(view="local"), as_written),
}
COLUMNS = [name for name in TOOLS if name != DIVIDED]  # which is there for the local view to be compared with
ONE_PROCESS = Tool("torch", "torch", lambda torch: None, as_written)


def seed(seeds: str) -> None:
    """Do what a script does that wants the same draws in every run."""
    if seeds == "seeded":
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)


def untrained() -> tuple[Linear, torch.optim.Optimizer]:
    """Make a model that stays as it is, so that every gradient is one at the same parameters."""
    model = Linear()
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def measure(tool: Tool, case: Case, rows: int, batch: int | None = None) -> dict[str, Any]:
    """Run one epoch of the script.

    Args:
        tool: what is added to the script.
        case: its loader.
        rows: of the dataset.
        batch: size of a batch; by default the case's own.
    """
    drawn.clear()
    loaded.clear()
    started = tool.start(importlib.import_module(tool.module))
    seed(case.seeds)
    size = batch or case.batch
    if tool.divides:
        size = max(1, size // int(os.environ["WORLD_SIZE"]))
    dataset, options = case.build(rows, size)
    model, optimizer = untrained()
    prepared = tool.prepare(started, Script(model, optimizer, dataset, options, case.loader))
    return epoch(case, model, prepared)


def epoch(case: Case, model: Linear, prepared: Prepared) -> dict[str, Any]:
    """Train an epoch, and write down what the script sees of it."""
    batches, sizes, gradients, correct, wrong_names = [], [], [], 0, 0
    for batch in prepared.loader:
        prepared.optimizer.zero_grad()
        out = prepared.model(batch["x"])
        prepared.backward(case.loss(out, batch))
        prepared.optimizer.step()
        gradients.append(model.weight.grad.tolist())
        batches.append(batch["id"].tolist())
        sizes.append(out.size(0))
        if out.dim() == 1:
            correct += (out.sign() == batch["y"]).sum().item()
        wrong_names += "name" in batch and list(batch["name"]) != [f"row {i}" for i in batches[-1]]
    loader = prepared.loader
    return {
        "batches": batches,
        "sizes": sizes,
        "gradients": gradients,
        "correct": correct,
        "wrong_names": wrong_names,
        "length": len(loader) if hasattr(loader.dataset, "__len__") else None,
        "dataset_length": len(loader.dataset) if hasattr(loader.dataset, "__len__") else None,
        "class_kept": case.loader is DataLoader or isinstance(loader, case.loader),
        "drawn": drawn[:1],
        "loaded": list(loaded),
    }
