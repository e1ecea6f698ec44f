"""mean, sum, gather: a number of this rank's rows as that of all rows, under ``view="local"``.

In the global view, and on one process, a value is that of all rows already: it is given back.
"""

from __future__ import annotations

from typing import Any, TypeVar

from .state import State

T = TypeVar("T")


def mean(value: T) -> T:
    """Give the mean over the ranks of a number or a tensor, detached.

    ``print(ddp_patch.mean(loss).item())``. Every rank counts the same: of ranks with unequal numbers of rows take
    ``ddp_patch.sum(total) / ddp_patch.sum(count)``.

    Args:
        value: a float, an int, or a tensor of one shape on all ranks. Every rank has to come here.

    Raises:
        BatchError: for anything else, or shapes that differ between the ranks.
    """
    result: T = _together("mean", value)
    return result


def sum(value: T) -> T:
    """Give the sum over the ranks of a number or a tensor, detached.

    ``accuracy = ddp_patch.sum(correct) / ddp_patch.sum(total)``.

    Args:
        value: as for ``mean``.

    Raises:
        BatchError: as for ``mean``.
    """
    result: T = _together("sum", value)
    return result


def gather(value: Any) -> Any:
    """Give the rows of all ranks, in the order in which the loader dealt them.

    Args:
        value: a tensor ``[b, ...]`` of this rank's rows, of which the ranks may have unequal numbers; or a list.

    Returns:
        a detached tensor ``[B, ...]``, or a list; on every rank. Rows that the loader repeated at the end are there.

    Raises:
        BatchError: for anything else.
    """
    return _together("gather", value)


def _together(how: str, value: Any) -> Any:
    session = State.session
    if session is None or session.options.view == "global":
        return value
    from .local import values  # noqa: PLC0415 — imports torch, which is there

    return getattr(values, how)(session.world, value)
