"""The script's loaders in the local view: each rank iterates a shadow that reads its own rows.

The script's own object keeps answering ``batch_size``, ``sampler`` and ``dataset`` as before; ``len`` counts the
batches of a rank, as under a ``DistributedSampler``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe

from ..batch.world import World
from ..diagnosis.first_batches import dataset_row_count, length
from ..errors import BatchError
from ..ledger import script_line
from ..loading.plan import is_distributed
from ..loading.shadow import Shadows, shadow_of
from ..options import Options
from .alike import compare
from .batches import DealtBatches, DealtStream, EpochOf, OwnBatches, TakenBatches
from .epochs import Epochs
from .generators import LocalGenerators
from .iterator import LocalIterator, longest, samplers_of
from .models import LocalModels
from .samplers import Dealt, Ranks, is_torchs, share_of

Make = Callable[[DataLoader[Any]], Any]


class LocalLoaders:
    """Gives the iterators of a session's loaders."""

    def __init__(
        self,
        options: Options,
        world: World,
        models: LocalModels,
        generators: LocalGenerators,
        per_host: int,
        on_epoch: Callable[[], None],
    ) -> None:
        """Start without any loader seen.

        Args:
            options: of the session.
            world: the ranks.
            models: that are trained on the batches.
            generators: that the script draws from.
            per_host: ranks of this host, which share the workers that the script asks for.
            on_epoch: called where all ranks begin one.
        """
        self._is_exact = options.tail == "exact"
        self._is_per_device = options.batch == "per_device"
        self._world = world
        self._models = models
        self._generators = generators
        self._per_host = per_host
        self._on_epoch = on_epoch
        self._ranks = Ranks(world.rank, world.size, generators.shared)
        self._epochs = Epochs(world, models)
        self._epochs_of: dict[int, EpochOf] = {}  # by the identity of the batch sampler
        self._shadows = Shadows()

    def iterate(self, make: Make, loader: DataLoader[Any]) -> Any:
        """Begin an epoch of a loader.

        Args:
            make: gives torch's iterator of a loader.
            loader: of the script.
        """
        counts = self._world.reaches_point("an epoch of a loader")
        try:
            self._on_epoch()
            if self._models.trained.ids():
                self._generators.make_per_rank()
            self._models.renew()
            described = _described(loader)
            epoch = self._epochs.begin(loader, described)
            shadow = self._shadow_of(loader)
            if loader.persistent_workers:
                self._shadows.keep(loader, shadow)
            sampler = samplers_of(shadow)[1]
            if isinstance(sampler, Dealt):
                sampler.epoch = epoch
            batches: Any = loader.batch_sampler
            if isinstance(shadow.batch_sampler, OwnBatches) and hasattr(batches, "set_epoch"):
                entry = self._epochs_of.get(id(batches))  # loaders that are made anew for each epoch may share it
                if entry is None or entry.of() is not batches:
                    entry = self._epochs_of[id(batches)] = EpochOf(batches)
                entry.begins(epoch)
            compare(self._world, loader, shadow, described)
            is_stream = isinstance(shadow.dataset, DealtStream)
            # It may shuffle as it goes: all ranks have to read it in one order.
            with self._generators.shared() if is_stream else contextlib.nullcontext():
                iterator = make(shadow)
            surround = self._generators.shared if is_stream and not shadow.num_workers else contextlib.nullcontext
            name = f"{described} {script_line()}"
            self._world.ledger.has_grown = True
            # Torch's iterator of a stream has none, though its loader may.
            count = length(loader) if is_stream else None
            return LocalIterator(iterator, shadow, self._world, self._models, name, epoch, surround, count)
        finally:
            if counts:
                self._world.trail.leave()

    def close(self) -> None:
        """Let go of workers."""
        self._shadows.close()

    def length(self, wrapped: Callable[[], int], loader: DataLoader[Any]) -> int:
        """Count the batches of a rank in an epoch."""
        if isinstance(loader.dataset, IterableDataset):
            if loader.batch_size is None or isinstance(loader.dataset, IterDataPipe):
                return wrapped()
            rows = length(loader.dataset)
            if rows is None:
                return wrapped()
            rows_per_rank = rows // self._world.size if loader.drop_last else math.ceil(rows / self._world.size)
            share = self._share(loader.batch_size)
            return rows_per_rank // share if loader.drop_last else math.ceil(rows_per_rank / share)
        if is_distributed(loader):
            return wrapped()
        return longest(self._shadow_of(loader))

    def _shadow_of(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        kept = self._shadows.get(loader)  # whose truth would be its length, which a stream may lack
        return self._shadow(loader) if kept is None else kept

    def _shadow(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Make the loader that this rank iterates in place of the script's."""
        changes, how = self._changes(loader)
        self._world.ledger.loaders[_described(loader)] = how
        if changes and loader.num_workers:
            changes["num_workers"] = -(-loader.num_workers // self._per_host)
        return shadow_of(loader, changes)

    def _changes(self, loader: DataLoader[Any]) -> tuple[dict[str, Any], str]:
        if is_distributed(loader):
            return {}, "left alone: it has a DistributedSampler"
        if isinstance(loader.dataset, IterDataPipe):
            return {}, "left to torch, which deals what the pipe's sharding_filter stands for"
        if isinstance(loader.dataset, IterableDataset):
            return self._of_stream(loader)
        changes, how = self._of_rows(loader)
        # Workers' seeds come from this rank's random state: from the script's generator all ranks' would be the same.
        return {**changes, "generator": None}, how

    def _of_rows(self, loader: DataLoader[Any]) -> tuple[dict[str, Any], str]:
        batches, sampler = samplers_of(loader)
        if batches is None:
            dealt = self._dealt(sampler, drop_last=False)
            return {"sampler": dealt}, "batch_size=None: every rank takes every Nth of what the dataset has"
        if is_torchs(batches):
            share = self._share(batches.batch_size)
            dealt = self._dealt(sampler, drop_last=batches.drop_last)
            made = BatchSampler(dealt, share, batches.drop_last)
            changes = {"sampler": made} if loader.batch_sampler is None else {"batch_sampler": made, "sampler": dealt}
            return changes, self._in_words(batches, share)
        if self._is_per_device:
            taken = TakenBatches(batches, self._ranks, is_exact=self._is_exact)
            return {"batch_sampler": taken}, f"each rank loads every Nth batch of {_name(batches)}"
        parts = DealtBatches(batches, self._ranks, is_exact=self._is_exact)
        return {"batch_sampler": parts}, f"each rank loads every Nth row of the batches of {_name(batches)}"

    def _share(self, batch_size: int) -> int:
        return batch_size if self._is_per_device else share_of(batch_size, self._world.size)

    def _dealt(self, sampler: Any, drop_last: bool) -> Dealt:
        exact = self._is_exact and not drop_last
        return Dealt(sampler, self._ranks, drop_last=drop_last, is_exact=exact)

    def _of_stream(self, loader: DataLoader[Any]) -> tuple[dict[str, Any], str]:
        if self._is_exact:
            raise BatchError(
                f"{script_line()}: tail='exact' cannot deal an iterable dataset, whose end no rank knows beforehand. "
                "Write tail='pad'."
            )
        dealt = DealtStream(loader.dataset, self._world.rank, self._world.size, not loader.drop_last)  # type: ignore[arg-type]
        changes: dict[str, Any] = {"dataset": dealt}
        if loader.batch_size is not None:
            batches: Any = loader.batch_sampler
            share = self._share(loader.batch_size)
            changes["batch_sampler"] = BatchSampler(batches.sampler, share, loader.drop_last)
        return changes, "a stream: every rank reads all of it and keeps every Nth row"

    def _in_words(self, batches: Any, share: int) -> str:
        size, ranks = batches.batch_size, self._world.size
        if share * ranks != size and not self._is_per_device:
            self._world.ledger.note(
                f"batch_size={size} cannot be divided among {ranks} ranks: each loads {share} rows, "
                f"so a batch of all ranks has {share * ranks}"
            )
        return f"each rank loads {share} rows of a batch, as torch's DistributedSampler deals them"


def _name(batches: Any) -> str:
    return type(batches).__name__


def _described(loader: DataLoader[Any]) -> str:
    dataset = type(loader.dataset).__name__
    size = f"batch_size={loader.batch_size}" if loader.batch_size else _name(loader.batch_sampler)
    rows = dataset_row_count(loader.dataset)
    text = "a stream" if rows is None else f"{rows} rows"
    return f"{type(loader).__name__}({dataset}, {text}, {size}, num_workers={loader.num_workers})"
