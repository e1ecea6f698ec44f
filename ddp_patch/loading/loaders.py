"""The script's loaders: each is planned once, and iterated through a shadow that fetches what this rank is to fetch.

The script's own object keeps answering ``len``, ``batch_size``, ``sampler`` and ``dataset`` as before.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..diagnosis.first_batches import FirstBatches, compare_datasets, dataset_row_count, length
from ..job.job import Job
from ..replica.replicas import Replicas
from .batches import as_dealt, common_rows, with_row_count
from .channel import Channel
from .collated import Collated
from .generators import FetchingGenerators, generators_of
from .grown_loaders import GrownLoaders
from .iterator import Batches
from .numbers import Numbers
from .plan import RUNS, Plan, Read, agreed, is_of_tensors, is_settled, plan
from .reachable import find_in_loader
from .reader import Reader
from .receiving_iterator import ReceivingIterator
from .sampler import DealtBatches, Drawn
from .shadow import Shadows, shadow_of
from .sharded_iterator import ShardedIterator, keep_samples
from .workers import divided, drawn_ahead

_LENGTH = "_IterableDataset_len_called"  # of a stream, which torch (2.13) warns of when more comes
Make = Callable[[DataLoader[Any]], Any]


class Loaders:
    """Gives the iterators of a session's loaders."""

    def __init__(self, replicas: Replicas, job: Job, world: World, timeout: float, *, grow: bool) -> None:
        """Start without any loader seen.

        Args:
            replicas: learn which batch the script is working on.
            job: of the ranks.
            world: the ranks.
            timeout: of the ranks' exchanges, in seconds.
            grow: the script's batch sizes count the rows of one rank.
        """
        self._growing = GrownLoaders(world.size, world.ledger) if grow else None
        self._replicas = replicas
        self._job = job
        self._world = world
        self._timeout = timeout
        self._is_one_host = job.placement.local_world_size == job.placement.world_size
        self._channel: Channel | None = None
        self._connecting = threading.Lock()
        self._shadows = Shadows()
        self._states: weakref.WeakKeyDictionary[DataLoader[Any], _LoaderState] = weakref.WeakKeyDictionary()
        self.numbers = Numbers(world)

    def iterate(self, make: Make, loader: DataLoader[Any]) -> Any:
        """Begin an epoch of a loader.

        Args:
            make: gives torch's iterator of a loader.
            loader: of the script.
        """
        counts = self._world.reaches_point("an epoch of a loader")
        try:
            return self._begun(make, loader)
        finally:
            if counts:
                self._world.trail.leave()

    def length(self, wrapped: Callable[[], int], loader: DataLoader[Any]) -> int:
        """Count the batches of an epoch."""
        return wrapped() if self._growing is None else self._growing.length(wrapped, loader)

    def _begun(self, make: Make, loader: DataLoader[Any]) -> Batches:
        scripts = loader
        if self._growing is not None:
            vars(loader).update({RUNS: True} if loader.persistent_workers else {})
            loader = self._growing.grown(loader)
        state = self._states.get(loader)
        # As was planned for the workers that go on.
        keeps_workers = state is not None and state.keeps_workers and self._shadows.has_workers(scripts)
        how = state.how if state is not None and keeps_workers else plan(loader, self._world.size, self._is_one_host)
        if not keeps_workers:
            for batch in find_in_loader(loader, (BatchTensor,)):
                full_tensor(batch)  # each rank asks for other samples, and workers cannot ask the other ranks
        if state is None:
            number = self.numbers.of(loader)
            how = agreed(how, compare_datasets(self._world, loader, number, how.by.name))
            collated = Collated(_described(loader), is_settled(loader))
            state = self._states[loader] = _LoaderState(number, FirstBatches(self._world, number), collated, how)
        elif not keeps_workers:
            name = f"the plan of loader {state.number} in epoch {state.epochs + 1}"
            how = agreed(how, self._world.exchange(name, how.by.name))
        state.how = how
        self._world.ledger.loaders[_described(loader)] = how.reason
        if not state.epochs and loader.persistent_workers:
            vars(loader)[RUNS] = True
        state.epochs += 1
        state.compared.begin()
        if not keeps_workers:
            self._shadows.drop(loader)
        source = self._source(how, make, loader, state, keeps_workers)
        what = f"a batch of loader {state.number} (epoch {state.epochs})"
        batches = length(loader) if self._growing is not None else None  # torch 2.13 warns where a stream was asked
        iterator = Batches(source, self._replicas, self._world, what, state.epochs - 1, batches, state.number)
        if state.keeps_workers:
            self._shadows.show(scripts, source.iterator)
        return iterator

    def iterate_everywhere(self, iterator: Any, loader: DataLoader[Any]) -> Batches:
        """Follow an iterator that every rank has to have, since the loader keeps its state for checkpoints."""
        if self._growing is not None:
            self._growing.refuse_position(loader)
        self._world.ledger.loaders[_described(loader)] = "read whole by every rank: it keeps its position"
        return Batches(
            ReplicatedIterator(iterator, self._world), self._replicas, self._world, "a batch of a loader", 0, None
        )

    def close(self) -> None:
        """Let go of the other ranks of this host, and of workers."""
        self._shadows.close()
        if self._channel is not None:
            self._channel.close()

    def _source(self, how: Plan, make: Make, loader: DataLoader[Any], state: _LoaderState, keeps_workers: bool) -> Any:
        if how.by is Read.AS_WRITTEN:
            return UndealtIterator(make(loader))
        state.keeps_workers = loader.persistent_workers
        name = f"loader {state.number} in epoch {state.epochs}"
        channel = self._connected() if how.by is Read.PER_HOST else None
        if channel is not None and not channel.is_reader:
            return ReceivingIterator(make, loader, channel, self._world, name, state.compared, keeps_workers)
        shadow = self._shadows.get(loader)
        if shadow is None:
            shadow = self._shadow(how, loader)
        if _LENGTH in vars(loader):  # it counts from when the script asked
            vars(shadow)[_LENGTH] = vars(loader)[_LENGTH]
        if loader.persistent_workers:
            self._shadows.keep(loader, shadow)
        sampler = shadow.batch_sampler if loader.batch_sampler is not None else shadow.sampler
        if isinstance(sampler, Drawn):
            sampler.compared = state.compared
        if channel is not None:
            lengths: deque[int | None] = deque()
            if isinstance(sampler, Drawn):
                sampler.lengths = lengths
            return Reader(lambda: make(shadow), loader, channel, self._world, name, _described(loader), lengths)
        assert isinstance(sampler, DealtBatches)
        collate = loader.collate_fn if how.by is Read.OWN_SAMPLES else None
        return ShardedIterator(make(shadow), sampler, self._world, name, _described(loader), state.collated, collate)

    def _connected(self) -> Channel:
        with self._connecting:
            if self._channel is None:
                self._channel = Channel(self._world, self._job.placement.local_rank, self._timeout)
            return self._channel

    def _shadow(self, how: Plan, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Make the loader that this rank iterates in place of the script's."""
        changes: dict[str, Any] = {}
        if how.by is Read.PER_HOST:
            changes["pin_memory"] = False  # after it was handed over
            if not self._is_one_host:
                changes["in_order"] = True  # as each host's workers are done, hosts would read different batches
            if not isinstance(loader.dataset, IterableDataset):
                which = "sampler" if loader.batch_sampler is None else "batch_sampler"
                changes[which] = Drawn(getattr(loader, which), self._world)
        else:
            workers = divided(loader, self._world.rank, self._job.placement.local_world_size)
            drawn = workers.get("num_workers", 0) * workers.get("prefetch_factor", 0)
            generators = None  # each worker has its own
            if loader.num_workers == 0 and not is_of_tensors(loader):
                held = generators_of(loader) if is_settled(loader) else []  # else one rank reads for all
                generators = FetchingGenerators(self._replicas.generators, held, self._world.rank)
            changes = {
                **workers,
                "batch_sampler": DealtBatches(
                    loader.batch_sampler,
                    self._world,
                    drawn_ahead(loader) - drawn,
                    generators,
                ),
                "in_order": True,  # batches out of order would differ between ranks
            }
            if how.by is Read.OWN_SAMPLES:
                changes["collate_fn"] = keep_samples
        return shadow_of(loader, changes)


@dataclass
class _LoaderState:
    """What is known about a loader that was iterated."""

    number: str  # the same for the same loader on every rank
    compared: FirstBatches
    collated: Collated
    how: Plan
    epochs: int = 0
    keeps_workers: bool = False  # for the next epoch


class UndealtIterator:
    """An iterator that is left alone."""

    def __init__(self, iterator: Any) -> None:
        """Keep it."""
        self.iterator = iterator

    def next(self) -> tuple[Any, int | None]:
        """Fetch a batch."""
        return with_row_count(next(self.iterator))


class ReplicatedIterator(UndealtIterator):
    """An iterator that gives every rank the same whole batches, of which each keeps its rows."""

    def __init__(self, iterator: Any, world: World) -> None:
        """Keep it."""
        super().__init__(iterator)
        self._world = world

    def next(self) -> tuple[Any, int | None]:
        """Fetch a batch, and deal it."""
        data = next(self.iterator)
        dealt, rows = as_dealt(data, self._world)
        return dealt, common_rows(data) if rows is None else rows


def _described(loader: DataLoader[Any]) -> str:
    dataset = type(loader.dataset).__name__
    size = f"batch_size={loader.batch_size}" if loader.batch_size else type(loader.batch_sampler).__name__
    rows = dataset_row_count(loader.dataset)
    length_text = "a stream" if rows is None else f"{rows} rows"
    return f"{type(loader).__name__}({dataset}, {length_text}, {size}, num_workers={loader.num_workers})"
