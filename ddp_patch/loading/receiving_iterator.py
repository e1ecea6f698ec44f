"""What the ranks do that another rank of their host reads for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..batch.forms import to_local
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..diagnosis.first_batches import FirstBatches
from ..generators import set_state_of, set_states, states
from .batches import mapped_tensors, pinned, with_row_count
from .channel import Channel
from .generators import generators_of, match_to_readers, preserving_rng_state
from .sampler import Drawn
from .shadow import shadow_of
from .workers import drawn_ahead


class EmptyDataset(IterableDataset[None]):
    """Stands for a dataset that another rank reads."""

    def __getitem__(self, index: Any) -> None:
        """Give nothing."""

    def __iter__(self) -> Iterator[None]:
        """Give nothing, for ever."""
        while True:
            yield None


class ReceivingIterator:
    """The iterator of a rank that gets what another one read."""

    def __init__(
        self,
        make: Callable[[DataLoader[Any]], Any],
        loader: DataLoader[Any],
        channel: Channel,
        world: World,
        name: str,
        compared: FirstBatches,
        keeps_workers: bool,
    ) -> None:
        """Draw what the reader draws when it makes its iterator.

        Args:
            make: gives torch's iterator of a loader.
            loader: of the script.
            channel: to the reader.
            world: the ranks.
            name: of this epoch, the same on every rank.
            compared: compares the first indices with those of the other ranks.
            keeps_workers: the reader goes on with workers that it kept, and draws no seed for them.
        """
        self._make = make
        self._loader = loader
        self._channel = channel
        self._world = world
        self._before: Any = states()
        twin, sampler = _without_data(loader, world)
        if sampler is not None:
            sampler.compared = compared
            sampler.begins = not keeps_workers
        with preserving_rng_state(loader.generator) if keeps_workers else contextlib.nullcontext():
            self.iterator = make(twin)
        if loader.num_workers > 0:
            # What torch's iterator says of itself (2.13), with the reader's workers out of reach.
            ours = {"_dataset": loader.dataset, "_num_workers": loader.num_workers, "_workers": []}
            vars(self.iterator).update(ours, _shutdown_workers=_nothing_to_shut_down)
        if sampler is not None:
            if loader.num_workers > 0:
                sampler.begin()  # torch 2.13 does when workers go on, and a second time when it starts them
            sampler.draw_ahead()
        self._sampler = sampler
        self._placed = pinned(loader)
        self._by_itself = False
        self._name = name
        begun = channel.receive(name)
        if isinstance(begun, BaseException):
            raise begun
        moved, began = begun
        self._generators = match_to_readers(generators_of(loader) if loader.num_workers == 0 else [], began)
        if moved is not None:
            set_states(moved[0])
            if moved[1] is not None:
                set_state_of(loader.generator, moved[1])

    def next(self) -> tuple[Any, int | None]:
        """Draw the next indices, and wait for their batch."""
        if self._by_itself:
            return with_row_count(next(self.iterator))
        failure: BaseException | None = None
        try:
            if self._sampler is not None:
                next(self.iterator)
        except (StopIteration, Exception) as error:  # noqa: BLE001 — the reader meets it too: its word is waited for
            failure = error
        kind, value, moved = self._channel.receive(self._name)
        if kind == "read it yourselves":
            return self._read_alone()
        if moved[0] is not None:
            set_states(moved[0])
        for generator, state in zip(self._generators, moved[1], strict=True):
            if generator is not None:
                set_state_of(generator, state)
        if kind == "stop":
            raise StopIteration
        if kind == "error":
            raise value
        if failure is not None:
            raise failure
        if self._sampler is None:
            next(self.iterator)  # which counts, and warns when more comes of a stream than its ``len`` told
        self._before = None
        data, rows = value
        return mapped_tensors(self._pinned, data), rows

    def _pinned(self, leaf: Tensor) -> Tensor:
        if isinstance(leaf, BatchTensor):
            return BatchTensor.from_local(self._placed(to_local(leaf)), leaf._layout)
        return self._placed(leaf)

    def _read_alone(self) -> tuple[Any, int | None]:
        """Read from the first batch on, whose indices were drawn already."""
        self._by_itself = True
        if self._sampler is None:  # a stream, which may draw from its beginning on
            set_states(self._before)
            self.iterator = self._make(self._loader)
        else:
            changes = {_sampler_of(self._loader): self._sampler.again()}
            with preserving_rng_state(self._loader.generator):
                self.iterator = self._make(shadow_of(self._loader, changes))
        return with_row_count(next(self.iterator))


def _without_data(loader: DataLoader[Any], world: World) -> tuple[DataLoader[Any], Drawn | None]:
    """Make a loader that draws what another draws, and reads nothing."""
    # Not of the loader's own class, whose iterator may work on what it gets.
    twin: DataLoader[Any] = object.__new__(DataLoader)
    twin.__dict__.update(loader.__dict__)
    changes: dict[str, Any] = {
        "dataset": EmptyDataset(),
        "collate_fn": _collate_nothing,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
        "worker_init_fn": None,
        "timeout": 0,
    }
    sampler = None
    if not isinstance(loader.dataset, IterableDataset):
        which = _sampler_of(loader)
        sampler = changes[which] = Drawn(getattr(loader, which), world, drawn_ahead(loader))
    twin.__dict__.update(changes)
    return twin, sampler


def _sampler_of(loader: DataLoader[Any]) -> str:
    return "sampler" if loader.batch_sampler is None else "batch_sampler"


def _nothing_to_shut_down() -> None:
    """The reader's workers are the reader's."""


def _collate_nothing(samples: Any) -> None:
    """Collate nothing."""
