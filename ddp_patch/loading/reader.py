"""One rank of each host reads a loader whose rows cannot be loaded apart; the others get what it read.

Every rank draws the sampler, which may be the script's own. The dataset and the collate function run on the reader
alone, with all of the loader's workers, and what they draw there from the script's generators is carried over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from .. import script_thread
from ..batch.in_datasets import refuse_trained
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..errors import BatchError
from ..generators import same, state_of, states
from ..portable import portable
from ..structure import leaves
from .batches import BatchDims, batch_size_of, copy_local_rows, cut, mapped_tensors, pinned, with_row_count
from .channel import Channel, NotPortableError
from .generators import generators_of


def _none(tensor: Tensor) -> None:
    """Deal nothing."""


class Reader:
    """The iterator of the rank that reads."""

    def __init__(
        self,
        make: Callable[[], Any],
        loader: DataLoader[Any],
        channel: Channel,
        world: World,
        name: str,
        described: str,
        lengths: deque[int | None],
    ) -> None:
        """Make torch's iterator.

        Args:
            make: gives an iterator that reads whole batches.
            loader: of the script.
            channel: to the other ranks of this host.
            world: the ranks.
            name: of this epoch, the same on every rank.
            described: names the loader in errors.
            lengths: how many samples each batch under way was drawn for, as far as it is known.
        """
        self._lengths = lengths
        self._channel = channel
        self._world = world
        self._draws_here = loader.num_workers == 0
        self._in_order = loader.in_order or self._draws_here
        self._placed = pinned(loader)
        self._described = described
        self._read = 0
        self._by_itself = False
        self._seen = BatchDims()
        self._name = name
        self._generators = generators_of(loader) if self._draws_here else []
        try:
            with world.read_by_one():
                self.iterator = make()
        except BaseException as error:
            self._name_dataset(error)
            channel.send(name, portable(error), _none)
            raise
        # Anything else draws nothing here that the other ranks do not draw themselves.
        draws = isinstance(loader.dataset, IterableDataset if self._draws_here else IterDataPipe)
        generator = loader.generator
        moved = states(), None if generator is None else state_of(generator)
        began = [state_of(each) for each in self._generators]
        channel.send(name, (moved if draws and script_thread.is_here() else None, began), _none)

    def next(self) -> tuple[Any, int | None]:
        """Read a batch, hand it over, and keep this rank's rows."""
        if self._by_itself:
            return with_row_count(next(self.iterator))
        # A thread of the script's draws beside the script: nothing can be told from where generators stand.
        before = states() if self._draws_here and script_thread.is_here() else None
        try:
            with self._world.read_by_one():
                data = next(self.iterator)
            refuse_trained(data, self._world)
        except StopIteration:
            self._hand_over("stop", None, before)
            raise
        except BaseException as error:
            self._name_dataset(error)
            self._hand_over("error", portable(error), before)
            raise
        finally:
            drawn = self._lengths.popleft() if self._lengths else None
        self._read += 1
        try:
            if any(isinstance(leaf, BatchTensor) for _, leaf in leaves(data)):
                raise NotPortableError("it is made of batches of another loader, of which every rank holds its rows")
            layout, dealt = cut(data, self._world, drawn if self._in_order else None, self._seen)
            rows = batch_size_of(data, drawn if self._in_order else None) if layout is None else layout.total
            self._hand_over("batch", (data, rows), before, lambda tensor: dealt.get(id(tensor)))
        except NotPortableError as error:
            if self._read == 1:
                self._by_itself = True
                self._hand_over("read it yourselves", None, None)
                return with_row_count(data)
            refused = BatchError(
                f"Batch {self._read} cannot be handed to the other ranks of this host ({error}), unlike those before "
                "it. Give it types that can be pickled."
            )
            self._hand_over("error", refused, before)
            raise refused from error
        except Exception as error:  # a kind of tensor that answers nothing, say: nobody may wait for it
            self._hand_over("error", portable(error), before)
            raise
        if layout is None:
            return mapped_tensors(self._placed, data), rows

        batches: dict[int, Tensor] = {}

        def kept(leaf: Tensor) -> Tensor:
            if id(leaf) not in dealt:
                return self._placed(leaf)
            if id(leaf) not in batches:
                batches[id(leaf)] = to_batch(leaf)
            return batches[id(leaf)]

        def to_batch(leaf: Tensor) -> Tensor:
            its = layout.at(dealt[id(leaf)])
            return BatchTensor.from_local(self._placed(copy_local_rows(leaf, its, self._world)), its)

        return mapped_tensors(kept, data), rows

    def _name_dataset(self, error: BaseException) -> None:
        if "DataLoader worker" in str(error):  # torch's words for one that died or is late
            error.args = (f"{error} (of {self._described})",)

    def _hand_over(self, kind: str, value: Any, before: Any, dealt: Callable[[Tensor], int | None] = _none) -> None:
        now = states() if before is not None else None
        moved = now if now is not None and not same(now, before) else None
        changed = moved, [state_of(generator) for generator in self._generators]
        self._channel.send(self._name, (kind, value, changed), dealt)
