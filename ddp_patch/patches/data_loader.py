"""torch.utils.data.DataLoader: every rank agrees on each global batch and loads only its rows of it.

A shadow of the loader, differing in its batch sampler and its workers, does the iterating; the script's own object
keeps answering ``len``, ``batch_size``, ``sampler`` and ``dataset`` as before.
"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler

from ..batch.tensor import BatchTensor
from ..batch.world import Layout, World
from ..diagnosis.lockstep import compare_datasets, compare_indices, length
from ..launch.job import Job
from ..patcher import Patch
from ..replica.replicas import Replicas
from ..replica.streams import rank_seed
from ..structure import leaves, map_items

_numbers = itertools.count(1)


def patches(replicas: Replicas, job: Job, world: World) -> list[Patch]:
    """Rows for ``DataLoader``."""
    # A loader with persistent workers keeps its iterator, and so its shadow.
    shadows: weakref.WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = weakref.WeakKeyDictionary()
    compared: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def iterate(wrapped: Any, instance: DataLoader[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        world.ledger.loaders[_described(instance)] = how_dealt(instance)
        first = instance not in compared
        if first:
            compare_datasets(world, instance)
            compared.add(instance)
        shadow = shadows.get(instance)
        if shadow is None:
            shadow = make_shadow(instance, world, replicas, job.placement.local_world_size)
            if instance.persistent_workers:
                shadows[instance] = shadow
        sampler = shadow.batch_sampler
        if isinstance(sampler, DealtBatches):
            sampler.check_next = first
        return Batches(wrapped.__func__(shadow), sampler, replicas, world, job)

    return [Patch("torch.utils.data.dataloader", "DataLoader.__iter__", iterate, "deals the rows of each batch")]


def is_dealt(loader: DataLoader[Any]) -> bool:
    """Tell whether rows may be loaded apart: torch's own collate over a map-style dataset keeps them independent."""
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and loader.collate_fn is default_collate
        and not is_distributed(loader)
    )


def is_distributed(loader: DataLoader[Any]) -> bool:
    """Tell whether the script deals the rows itself."""
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1 for sampler in samplers)


def how_dealt(loader: DataLoader[Any]) -> str:
    """Say for the report how a loader's batches reach the ranks."""
    if is_dealt(loader):
        return "rows dealt: each rank loads its own"
    if is_distributed(loader):
        return "left alone: it has a DistributedSampler"
    if isinstance(loader.dataset, IterableDataset):
        return "loaded whole on every rank: an iterable dataset"
    if loader.batch_sampler is None:
        return "loaded whole on every rank: batch_size=None, the dataset makes the batches"
    return "loaded whole on every rank: a collate_fn of the script's own may look at the whole batch"


def make_shadow(loader: DataLoader[Any], world: World, replicas: Replicas, ranks_per_host: int) -> DataLoader[Any]:
    """Make the loader that this rank iterates in place of the script's."""
    shadow: DataLoader[Any] = object.__new__(type(loader))
    # DataLoader refuses attribute writes after __init__ (torch 2.x __setattr__).
    shadow.__dict__.update(loader.__dict__)
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset) or is_distributed(loader):
        return shadow
    dealt = is_dealt(loader)
    fetches_here = dealt and loader.num_workers == 0
    changes: dict[str, Any] = {
        "batch_sampler": DealtBatches(loader.batch_sampler, world, replicas if fetches_here else None, dealt),
        "in_order": True,  # batches out of order would differ between ranks
    }
    if dealt and loader.num_workers > 0:
        changes["num_workers"] = -(-loader.num_workers // ranks_per_host)
        changes["worker_init_fn"] = RankSeeds(world.rank, loader.worker_init_fn)
    shadow.__dict__.update(changes)
    return shadow


class RankSeeds:
    """A worker_init_fn that moves a worker's generators to the rank's stream, then calls the script's own."""

    def __init__(self, rank: int, then: Callable[[int], None] | None) -> None:
        """Keep what spawned workers can unpickle."""
        self.rank = rank
        self.then = then

    def __call__(self, worker_id: int) -> None:
        """Seed torch, random and numpy, which torch seeded alike on every rank."""
        seed = rank_seed(torch.initial_seed(), self.rank)
        torch.manual_seed(seed)
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy:
            numpy.random.seed(seed % (1 << 32))
        if self.then is not None:
            self.then(worker_id)


class DealtBatches:
    """A batch sampler that draws each global batch and hands over this rank's part of it."""

    def __init__(self, batches: Any, world: World, replicas: Replicas | None, deals: bool) -> None:
        """Wrap the script's batch sampler.

        Args:
            batches: yields the indices of global batches.
            world: the ranks to deal to.
            replicas: whose rank stream is entered for the fetch that follows; None if workers fetch.
            deals: False to hand every batch over whole and only note its size.
        """
        self.batches = batches
        self.world = world
        self.deals = deals
        self.check_next = False
        self.number = next(_numbers)  # the same loader has the same number on every rank
        self.sizes: deque[tuple[int, Layout | None]] = deque()  # of the batches under way, oldest first
        self._replicas = replicas

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield this rank's indices."""
        self.sizes.clear()
        for drawn in self.batches:
            indices = list(drawn)
            if self.check_next:
                self.check_next = False
                compare_indices(self.world, indices)
            layout = Layout.deal(len(indices), 0, self.world.size) if self.deals else None
            self.sizes.append((len(indices), layout))
            if layout is None:
                yield indices
                continue
            start, length = layout.span(self.world.rank)
            if self._replicas is not None:
                self._replicas.stream.enter()  # left by Batches once the rows are fetched
            yield indices[start : start + length]

    def __len__(self) -> int:
        """Count the global batches."""
        return len(self.batches)


class Batches:
    """A loader's iterator: what it yields is the global batch."""

    def __init__(self, iterator: Any, sampler: Any, replicas: Replicas, world: World, job: Job) -> None:
        """Wrap torch's iterator.

        Args:
            iterator: fetches this rank's rows.
            sampler: the DealtBatches that it draws from; anything else if the loader was left alone.
            replicas: learns the size of the batch the script is working on.
            world: the ranks the batch is dealt to.
            job: tells whether a failure was that of all ranks.
        """
        self._job = job
        self._fetched = 0
        self._iterator = iterator
        self._sampler = sampler if isinstance(sampler, DealtBatches) else None
        self._replicas = replicas
        self._world = world
        self._has_workers = getattr(iterator, "_num_workers", 0) > 0

    def __iter__(self) -> Batches:
        """An iterator is its own iterator."""
        return self

    def __len__(self) -> int:
        """Count the batches."""
        return len(self._iterator)

    def __next__(self) -> Any:
        """Fetch the next batch."""
        self._fetched += 1
        self._world.check()
        try:
            data = next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            if self._sampler is not None and self._sampler.deals:
                self._world.compare_failures(error, f"batch {self._fetched} of loader {self._sampler.number}")
            raise
        finally:
            self._replicas.stream.leave()
        if self._sampler is None:
            self._replicas.rows = _common_rows(data)
            return data
        rows, layout = self._sampler.sizes.popleft()
        self._replicas.rows = rows
        if layout is not None:
            return as_batch(data, layout, self._world)
        if self._sampler.deals and self._has_workers:
            # Fewer rows than ranks: all hold all of them, but their workers draw from streams of their own.
            shared = [data]
            dist.broadcast_object_list(shared, src=0, group=self._world.group, device=self._world.device)
            return shared[0]
        return data

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on to torch's iterator."""
        return getattr(self._iterator, name)


def as_batch(data: Any, layout: Layout, world: World) -> Any:
    """Make batches of collated rows: tensors keep their place, lists of strings are shared."""
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, (str, bytes)) for item in data):
        return type(data)(item for part in world.share(list(data)) for item in part)

    if isinstance(data, Tensor):
        return BatchTensor.from_rows(data, layout) if data.dim() > 0 else data
    return map_items(lambda item: as_batch(item, layout, world), data)


def _common_rows(data: Any) -> int | None:
    """Size of a batch that came whole, if all its tensors agree on it."""
    sizes = {leaf.shape[0] if leaf.dim() else None for _, leaf in leaves(data) if isinstance(leaf, Tensor)}
    return sizes.pop() if len(sizes) == 1 else None


def _described(loader: DataLoader[Any]) -> str:
    dataset = type(loader.dataset).__name__
    size = f"batch_size={loader.batch_size}" if loader.batch_size else type(loader.batch_sampler).__name__
    rows = length(loader.dataset)
    length_text = "a stream" if rows is None else f"{rows} rows"
    return f"{type(loader).__name__}({dataset}, {length_text}, {size}, num_workers={loader.num_workers})"
