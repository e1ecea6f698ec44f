"""One rank of each host reads a loader whose rows cannot be loaded apart; the others get what it read.

Every rank draws the sampler, which may be the script's own. The dataset and the collate function run on the reader
alone, with all of the loader's workers, and what they draw there from the script's generators is carried over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..batch.forms import rows_of
from ..batch.tensor import BatchTensor
from ..batch.world import World, portable
from ..errors import BatchError
from .batches import common_rows, cut, mapped_tensors, own_copy
from .channel import Channel, NotPortableError
from .generators import (
    in_main_thread,
    own_generators,
    same,
    set_state_of,
    set_states,
    state_of,
    states,
    undrawn,
)
from .sampler import Drawn
from .workers import drawn_ahead

Given = tuple[Any, int | None]  # a batch as the script sees it, and how many rows it has


class Nothing(IterableDataset[None]):
    """Stands for a dataset that another rank reads."""

    def __getitem__(self, index: Any) -> None:
        """Give nothing."""

    def __iter__(self) -> Iterator[None]:
        """Give nothing, for ever."""
        while True:
            yield None


class Reader:
    """The iterator of the rank that reads."""

    def __init__(
        self,
        iterator: Any,
        loader: DataLoader[Any],
        channel: Channel,
        world: World,
        name: str,
        described: str,
    ) -> None:
        """Wrap torch's iterator, which has just been made.

        Args:
            iterator: reads whole batches.
            loader: of the script.
            channel: to the other ranks of this host.
            world: the ranks.
            name: of this epoch, the same on every rank.
            described: names the loader in errors.
        """
        self.iterator = iterator
        self._channel = channel
        self._world = world
        self._draws_here = loader.num_workers == 0
        self._placed = _placed(loader)
        self._described = described
        self._read = 0
        self._by_itself = False
        self._name = name
        self._generators = own_generators(loader) if self._draws_here else []
        channel.send(name, states(), _none)

    def next(self) -> Given:
        """Read a batch, hand it over, and keep this rank's rows."""
        if self._by_itself:
            return given(next(self.iterator))
        # A thread of the script's draws beside the script: nothing can be told from where generators stand.
        before = states() if self._draws_here and in_main_thread() else None
        reading = self._world.reading.set(True)  # the others do not take part
        try:
            data = next(self.iterator)
        except StopIteration:
            self._hand_over("stop", None, before)
            raise
        except BaseException as error:
            if "DataLoader worker" in str(error):  # torch's words for one that died or is late
                error.args = (f"{error} (of {self._described})",)
            self._hand_over("error", portable(error), before)
            raise
        finally:
            self._world.reading.reset(reading)
        self._read += 1
        layout, dealt = cut(data, self._world)
        try:
            self._hand_over("batch", (data, layout), before, lambda tensor: id(tensor) in dealt)
        except NotPortableError as error:
            if self._read == 1:
                self._by_itself = True
                self._hand_over("read it yourselves", None, None)
                return given(data)
            refused = BatchError(
                f"Batch {self._read} cannot be handed to the other ranks of this host ({error}), unlike those before "
                "it. Give it types that can be pickled."
            )
            self._hand_over("error", refused, before)
            raise refused from error
        if layout is None:
            return mapped_tensors(self._placed, data), common_rows(data)

        batches: dict[int, Tensor] = {}

        def kept(leaf: Tensor) -> Tensor:
            if id(leaf) not in dealt:
                return self._placed(leaf)
            if id(leaf) not in batches:
                batches[id(leaf)] = own(leaf)
            return batches[id(leaf)]

        def own(leaf: Tensor) -> Tensor:
            return BatchTensor.from_rows(self._placed(own_copy(leaf, layout, self._world)), layout)

        return mapped_tensors(kept, data), layout.total

    def _hand_over(self, kind: str, value: Any, before: Any, is_dealt: Callable[[Tensor], bool] | None = None) -> None:
        now = states() if before is not None else None
        moved = now if now is not None and not same(now, before) else None
        changed = moved, [state_of(generator) for generator in self._generators]
        self._channel.send(self._name, (kind, value, changed), is_dealt or _none)


class Listener:
    """The iterator of a rank that gets what another one read."""

    def __init__(
        self,
        make: Callable[[DataLoader[Any]], Any],
        loader: DataLoader[Any],
        channel: Channel,
        world: World,
        name: str,
        again: bool,
    ) -> None:
        """Draw what the reader draws when it makes its iterator.

        Args:
            make: gives torch's iterator of a loader.
            loader: of the script.
            channel: to the reader.
            world: the ranks.
            name: of this epoch, under which its first indices are compared with those of the other ranks.
            again: the reader goes on with workers that it kept, and draws no seed for them.
        """
        self._make = make
        self._loader = loader
        self._channel = channel
        self._world = world
        self._before: Any = states()
        hollow, sampler = _hollow(loader, world)
        if sampler is not None:
            sampler.compare_as = name
        with undrawn(loader.generator) if again else contextlib.nullcontext():
            self.iterator = make(hollow)
        if sampler is not None:
            if loader.num_workers > 0 and not again:
                sampler.begin()  # as torch 2.13 does, a second time
            sampler.draw_ahead()
        self._draws = sampler is not None
        self._placed = _placed(loader)
        self._by_itself = False
        self._generators = own_generators(loader) if loader.num_workers == 0 else []
        self._name = name
        held = channel.receive(name)
        if in_main_thread():
            set_states(held)

    def next(self) -> Given:
        """Draw the next indices, and wait for their batch."""
        if self._by_itself:
            return given(next(self.iterator))
        own: BaseException | None = None
        try:
            if self._draws:
                next(self.iterator)
        except (StopIteration, Exception) as error:  # noqa: BLE001 — the reader meets it too: its word is waited for
            own = error
        kind, value, moved = self._channel.receive(self._name)
        if moved[0] is not None:
            set_states(moved[0])
        for generator, state in zip(self._generators, moved[1], strict=True):
            set_state_of(generator, state)
        if kind == "stop":
            raise StopIteration
        if kind == "error":
            raise value
        if kind == "read it yourselves":
            return self._read_alone()
        if own is not None:
            raise own
        self._before = None
        data, layout = value
        data = mapped_tensors(self._pinned, data)
        return given(data) if layout is None else (data, layout.total)

    def _pinned(self, leaf: Tensor) -> Tensor:
        if isinstance(leaf, BatchTensor):
            return BatchTensor.from_rows(self._placed(rows_of(leaf)), leaf._layout)
        return self._placed(leaf)

    def _read_alone(self) -> Given:
        self._by_itself = True
        set_states(self._before)
        self.iterator = self._make(self._loader)
        return given(next(self.iterator))


def given(data: Any) -> Given:
    """A batch that this rank has whole."""
    return data, common_rows(data)


def _hollow(loader: DataLoader[Any], world: World) -> tuple[DataLoader[Any], Drawn | None]:
    """Make a loader that draws what another draws, and reads nothing."""
    hollow: DataLoader[Any] = object.__new__(type(loader))
    hollow.__dict__.update(loader.__dict__)
    changes: dict[str, Any] = {
        "dataset": Nothing(),
        "collate_fn": _nothing,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "persistent_workers": False,
        "worker_init_fn": None,
        "timeout": 0,
    }
    sampler = None
    if not isinstance(loader.dataset, IterableDataset):
        which = "sampler" if loader.batch_sampler is None else "batch_sampler"
        sampler = changes[which] = Drawn(getattr(loader, which), world, drawn_ahead(loader))
    hollow.__dict__.update(changes)
    return hollow, sampler


def _nothing(samples: Any) -> None:
    """Collate nothing."""


def _none(tensor: Tensor) -> bool:
    """Deal nothing."""
    return False


def _placed(loader: DataLoader[Any]) -> Callable[[Tensor], Tensor]:
    """What ``pin_memory`` asks for."""
    if loader.pin_memory and torch.accelerator.is_available():
        return lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor
    return lambda tensor: tensor
