"""torch.utils.data.DataLoader: every rank agrees on each global batch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from ..patch import Args, Kwargs, Patch
from ..session import Session

_DEALS = "deals the rows of each batch; `num_workers` is divided among the ranks of a host"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def _make(session: Session, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> None:
    wrapped(*args, **kwargs)
    session.loaders.numbers.made(instance)


def _iterate(session: Session, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> Any:
    world = session.world
    if world.reading.get() or world.fetching.get():  # within a dataset: this rank is at a row of its own
        return wrapped(*args, **kwargs)
    return session.loaders.iterate(underlying_iter(wrapped), instance)


def underlying_iter(wrapped: Any) -> Any:
    """The function behind ``loader.__iter__``, also where it is called as ``DataLoader.__iter__(loader)``."""
    return getattr(wrapped, "__func__", None) or wrapped.__wrapped__


def _length(session: Session, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> int:
    return session.loaders.length(wrapped, instance)


def _iterate_stateful(session: Session, wrapped: Any, instance: DataLoader[Any], args: Args, kwargs: Kwargs) -> Any:
    was_in_order = instance.in_order
    vars(instance)["in_order"] = True  # as their workers are done, ranks would cut rows of different batches
    try:
        return session.loaders.iterate_everywhere(wrapped(*args, **kwargs), instance)
    finally:
        vars(instance)["in_order"] = was_in_order


PATCHES = (
    Patch("torch.utils.data.dataloader", "DataLoader.__init__", _make, "is counted: a thread may read it first"),
    Patch("torch.utils.data.dataloader", "DataLoader.__iter__", _iterate, _DEALS),
    Patch(
        "torch.utils.data.dataloader",
        "DataLoader.__len__",
        _length,
        'with `batch="per_device"`, counts the grown batches',
    ),
    # torchdata's has an ``__iter__`` of its own.
    Patch(
        _STATEFUL,
        "StatefulDataLoader.__iter__",
        _iterate_stateful,
        "computes the rows of each batch apart",
        when_imported=_STATEFUL,
    ),
)
