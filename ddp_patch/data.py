"""shard_batch and read_once: what the script says about its data."""

from __future__ import annotations

import sys
import warnings
from typing import Any, TypeVar

from .errors import OptionError
from .state import State

T = TypeVar("T")


def shard_batch(data: T, dim: int = 0) -> T:
    """Make a batch of tensors that did not come from a DataLoader, so that each rank computes its own rows of them.

    ``x, y = ddp_patch.shard_batch(get_batch("train"))``. On one process, or while ddp_patch is not
    enabled, ``data`` itself.

    ``loader = ddp_patch.shard_batch(loader)`` has every rank load its own rows where a ``collate_fn`` of the script's
    would have them read by one rank of each host. It is called on every rank with the samples of the whole batch.

    Args:
        data: a tensor ``[B, ...]``, or a structure (list, tuple, dict, dataclass) of tensors with one number of rows.
            Every rank must hold the same values, as it does if they come from torch, numpy or random. Or a DataLoader.
        dim: the batch dimension.

    Raises:
        BatchError: when the tensors have different numbers of rows, or lack the dimension; for a DataLoader of an
            iterable dataset or with ``batch_size=None``.
        LockstepError: when the ranks hold different values.
    """
    if _is_loader(data):
        _choose(data, "shard_batch")
        return data
    return data if State.session is None else State.session.deal(data, dim)


def read_once(loader: T) -> T:
    """Have one rank of each host read a DataLoader, with all its workers, and hand the batches to the others.

    Its dataset then draws what it would draw on one process. Rows are computed apart as ever.

    Args:
        loader: a ``torch.utils.data.DataLoader``. Itself is returned.
    """
    if not _is_loader(loader):
        raise OptionError(f"ddp_patch.read_once() got {type(loader).__name__}. Pass a torch.utils.data.DataLoader.")
    _choose(loader, "read_once")
    return loader


def deal(data: T, dim: int = 0) -> T:
    """Do what ``shard_batch`` does, by its old name."""
    _renamed("deal", "shard_batch")
    return shard_batch(data, dim)


def whole(loader: T) -> T:
    """Do what ``read_once`` does, by its old name."""
    _renamed("whole", "read_once")
    return read_once(loader)


def _renamed(old: str, new: str) -> None:
    warnings.warn(f"ddp_patch.{old}() is ddp_patch.{new}() now; the old name goes", DeprecationWarning, stacklevel=3)


def _is_loader(data: Any) -> bool:
    module = sys.modules.get("torch.utils.data")  # there is no loader before it is imported
    return module is not None and isinstance(data, module.DataLoader)


def _choose(loader: Any, rows: str) -> None:
    from .loading.plan import choose  # noqa: PLC0415 — imports torch, which the loader's author has

    choose(loader, rows)
