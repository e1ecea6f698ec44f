"""shard_batch and read_once: what the script says about its data."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

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


def read_once(source: T) -> T:
    """Have one rank read, and hand what it gets to the others.

    A DataLoader is read by one rank of each host, with all its workers. Its dataset then draws what it would draw on
    one process. Rows are computed apart as ever.

    A function, such as ``queue.get`` of a queue that processes of the script put batches into, is called by rank 0:
    ``get = ddp_patch.read_once(queue.get)``. The other ranks get what it returns, which has to survive pickling, or
    raise what it raises. Batches that it is given are whole. On one process, or while ddp_patch is not
    enabled, it is what it was.

    Args:
        source: a ``torch.utils.data.DataLoader``, which is returned; or a function, in whose place another is.

    Raises:
        OptionError: for anything else.
    """
    if _is_loader(source):
        _choose(source, "read_once")
        return source
    if not callable(source):
        raise OptionError(
            f"ddp_patch.read_once() got {type(source).__name__}. Pass a torch.utils.data.DataLoader, or a function "
            "such as queue.get."
        )
    return cast(T, functools.partial(_by_rank_zero, source))


def _by_rank_zero(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    session = State.session
    if session is None or not session.rank_zero.in_lockstep():
        return function(*args, **kwargs)
    from .batch.wholes import final_arguments  # noqa: PLC0415 — imports torch, which a session has
    from .generators import same, set_states, states  # noqa: PLC0415

    args, kwargs = final_arguments(args, kwargs)

    def read() -> tuple[Any, list[Any] | None]:
        before = states()
        result = function(*args, **kwargs)
        now = states()
        return result, None if same(before, now) else now  # what it drew, every rank has drawn

    name = getattr(function, "__qualname__", type(function).__qualname__)
    result, moved = session.rank_zero.call(f"{name}, by ddp_patch.read_once", read)
    if moved is not None and not session.rank_zero.is_leader:
        set_states(moved)
    return result


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
