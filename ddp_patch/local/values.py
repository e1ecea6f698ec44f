"""Values of all ranks' rows, of those of one."""

from __future__ import annotations

import builtins
import itertools
from typing import Any

import torch
from torch import Tensor

from ..batch.layout import Layout
from ..batch.world import World
from ..errors import BatchError
from ..ledger import script_line


def mean(world: World, value: Any) -> Any:
    """Give the mean over the ranks."""
    total = _sum(world, "mean", value)
    return total / world.size


def sum(world: World, value: Any) -> Any:
    """Give the sum over the ranks."""
    return _sum(world, "sum", value)


def gather(world: World, value: Any) -> Any:
    """Give the rows of all ranks, row by row in turn, as the loader dealt them."""
    if isinstance(value, list):
        parts = [values[0] for values in world.share([value])]
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*parts, fillvalue=_NONE))
        return [row for row in in_turn if row is not _NONE]
    if not isinstance(value, Tensor) or value.dim() == 0:
        raise _refused("gather", value, "a tensor [b, ...] of rows, or a list; for a number, mean or sum")
    forms = [values[0] for values in world.share([(len(value), tuple(value.shape[1:]), str(value.dtype))])]
    if len({form[1:] for form in forms}) > 1:
        raise _refused("gather", value, f"rows of one shape and dtype on all ranks; they have {forms}")
    counts = tuple(form[0] for form in forms)
    layout = Layout(counts, 0, builtins.sum(counts))
    rows = world.all_gather_rows(value.detach().contiguous(), layout)
    starts = list(itertools.accumulate((0, *counts)))
    order = [starts[rank] + row for row in range(max(counts)) for rank in range(world.size) if row < counts[rank]]
    return rows[torch.tensor(order, device=rows.device, dtype=torch.long)]


_NONE = object()


def _sum(world: World, how: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
        raise _refused(how, value, "a number or a tensor")
    if isinstance(value, (int, float)):
        parts = [values[0] for values in world.share([value])]
        return builtins.sum(parts)
    forms = {values[0] for values in world.share([(tuple(value.shape), str(value.dtype))])}
    if len(forms) > 1:
        raise _refused(how, value, f"one shape and dtype on all ranks; they have {sorted(forms)}")
    local = value.detach()
    if how == "mean" and not (local.is_floating_point() or local.is_complex()):
        local = local.to(torch.get_default_dtype())
    return world.all_reduce(local.long() if local.dtype == torch.bool else local)


def _refused(how: str, value: Any, wanted: str) -> BatchError:
    what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
    return BatchError(f"{script_line()}: ddp_patch.{how}({what}): pass {wanted}.")
