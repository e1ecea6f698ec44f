"""batch="per_device": the script's batch size counts the rows of a rank, so batches of all ranks grow with them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from ..errors import BatchError
from ..ledger import Ledger, script_line
from .plan import is_distributed
from .shadow import shadow_of


class GrownLoaders:
    """Gives loaders whose batches have grown."""

    def __init__(self, factor: int, ledger: Ledger) -> None:
        """Start with none.

        Args:
            factor: how many times as big a batch is.
            ledger: of the session.
        """
        self._factor = factor
        self._ledger = ledger
        self._grown: weakref.WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = weakref.WeakKeyDictionary()

    def grown(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Give the loader to read in place of the script's.

        Raises:
            BatchError: for one whose batches its dataset makes, or that counts them by itself.
        """
        self._ledger.has_grown = True
        if is_distributed(loader):
            return loader
        kind = next(kind for kind in type(loader).__mro__ if "__len__" in vars(kind))
        if kind is not DataLoader:  # an epoch would have as many batches as it counts, each of them bigger
            raise BatchError(
                f"{script_line()}: batch='per_device' cannot let the batches of {kind.__name__} grow, which counts "
                "them by itself (it has a __len__ of its own). Use torch's DataLoader, or leave batch='per_device' out."
            )
        if loader.batch_sampler is None:
            raise BatchError(
                f"{script_line()}: batch='per_device' cannot let batches grow that the dataset makes "
                "(batch_size=None). Let it give rows and write batch_size=..., or leave batch='per_device' out."
            )
        cached = self._grown.get(loader)
        changes: dict[str, Any] = {"batch_sampler": self._bigger(loader.batch_sampler)}
        if loader.batch_size is not None:  # by which torch counts the batches of a stream
            changes["batch_size"] = loader.batch_size * self._factor
        grown = (
            shadow_of(loader, changes) if cached is None else cached
        )  # its truth is its length: a stream may lack one
        grown.__dict__.update({**loader.__dict__, **changes})
        self._grown[loader] = grown
        return grown

    def refuse_position(self, loader: Any) -> None:
        """Refuse a loader that says how many of its batches were read, as torchdata's ``StatefulDataLoader``.

        Raises:
            BatchError: naming it.
        """
        raise BatchError(
            f"{script_line()}: batch='per_device' cannot let the batches of {type(loader).__name__} grow, which keeps "
            "its position among those of the script's size. Use torch's DataLoader, or leave batch='per_device' out."
        )

    def length(self, wrapped: Callable[[], int], loader: DataLoader[Any]) -> int:
        """Count the batches of an epoch."""
        if any(loader is grown for grown in self._grown.values()) or is_distributed(loader):
            return wrapped()
        if loader.batch_sampler is None:
            return wrapped()
        if isinstance(loader.dataset, IterableDataset):
            rows, size = len(loader.dataset), (loader.batch_size or 1) * self._factor  # type: ignore[arg-type]
            return rows // size if loader.drop_last else -(-rows // size)
        return len(self._bigger(loader.batch_sampler))

    def _bigger(self, batches: Any) -> Any:
        if type(batches) is BatchSampler:
            return BatchSampler(batches.sampler, batches.batch_size * self._factor, batches.drop_last)
        return MergedBatchSampler(batches, self._factor)


class MergedBatchSampler(Sampler[list[Any]]):
    """Several batches of a batch sampler of the script's as one."""

    def __init__(self, batches: Any, size: int) -> None:
        """Put them together.

        Args:
            batches: draws lists of indices.
            size: how many make one.
        """
        self._batches = batches
        self._size = size
        self._drops = bool(getattr(batches, "drop_last", False))

    def __iter__(self) -> Iterator[list[Any]]:
        """Give batches; the last one may be of fewer."""
        drawn = iter(self._batches)
        while together := list(itertools.islice(drawn, self._size)):
            if len(together) == self._size or not self._drops:
                yield [index for batch in together for index in batch]

    def __len__(self) -> int:
        """Count them."""
        return len(self._batches) // self._size if self._drops else -(-len(self._batches) // self._size)
