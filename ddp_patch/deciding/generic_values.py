"""Does a function that nothing is known about keep rows apart? Try it on generic values of the same shapes.

The values at hand may hide it: what is multiplied by a gate that starts at zero, say.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from ..batch.forms import full_tensor
from ..batch.layout import Layout, RowPlacement
from ..batch.names import writes_in_place
from ..batch.row_numbers import RowRuns, Rows
from ..batch.tensor import BatchTensor
from ..batch.tried_calls import TriedCall
from ..batch.world import World
from ..calling.comparison import Dims, compare, usual_size
from ..generators import same_draws
from ..structure import leaves, map_leaves
from .tried_forward import TriedForward

_FEW = 9  # rows


def agreed(func: Callable[..., Any], args: Any, kwargs: Any, is_wanted: bool) -> TriedCall:
    """Try a function, and tell what all ranks saw: a running sum looks apart to the first rank. All ranks come here.

    Args:
        func: a function of torch.
        args: of a call; the batches among them were gathered.
        kwargs: of the call.
        is_wanted: whether it is of interest on this rank.
    """
    world = World.get()
    with same_draws() as draw_again:
        local = where_rows_lie(func, args, kwargs, world.rank) if is_wanted else TriedCall(None)
        draw_again()
    every = [answer[0] for answer in world.share([(local.dims, local.is_repeatable, local.cut)])]
    if any((dims, cut) != (local.dims, local.cut) for dims, _, cut in every):
        return TriedCall(None)
    return dataclasses.replace(local, is_repeatable=all(repeats for _, repeats, _ in every))


def where_rows_lie(func: Callable[..., Any], args: Any, kwargs: Any, rank: int) -> TriedCall:
    """Tell where a function's results have their rows, if some rows give what the whole batch gives for them.

    Tensors that every rank has whole are tried as they are, and then with a row for each of the batch where that fits.
    Beside a rank's rows, runs of a few are tried, cut at two places one after the other: a function that treats rows in
    pairs, or fours, keeps them apart where all ranks have an even number. No communication.

    Args:
        func: a function of torch.
        args: of a call; the batches among them were gathered.
        kwargs: of the call.
        rank: whose rows are tried.
    """
    batches = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor)]
    layout = batches[0]._layout
    if not all(its._layout.lies_as(layout) for its in batches) or writes_in_place(func, kwargs):
        return TriedCall(None)
    plain = {path: leaf for path, leaf in leaves((args, kwargs)) if _has_rows(leaf, layout)}
    for cut in [{}, plain] if plain else [{}]:
        tried = _Trials(func, args, kwargs, {id(leaf) for leaf in cut.values()}, layout).tried(rank)
        if tried.dims is not None:
            return dataclasses.replace(tried, cut=frozenset(cut))
    return TriedCall(None)


def _has_rows(leaf: Any, layout: Layout) -> bool:
    """Tell a tensor that every rank has whole, and that may have a row for each of the batch."""
    if not isinstance(leaf, Tensor) or isinstance(leaf, BatchTensor) or leaf.layout is not torch.strided:
        return False
    return leaf.dim() > layout.dim and leaf.shape[layout.dim] == layout.total


class _Trials:
    """Calls of a function with some of the rows."""

    def __init__(self, func: Callable[..., Any], args: Any, kwargs: Any, cut: set[int], layout: Layout) -> None:
        self._func, self._arguments = func, (args, kwargs)
        self._cut, self._layout = cut, layout  # tensors that are no batches, by identity
        self._generator = torch.Generator("cpu").manual_seed(0)
        self._generic: dict[int, Tensor] = {}
        self._plain: list[tuple[Tensor, Tensor]] = []  # what is no batch, and how it was
        self._is_repeatable = True

    def tried(self, rank: int) -> TriedCall:
        total = self._layout.total
        few = min(total, _FEW)
        try:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                (dims,) = self._compared(total, [self._layout.rows(rank)])
                if dims is None or None in dims.values() or any(its != dims for its in self._compared(few, _runs(few))):
                    return TriedCall(None)
                if not all(itertools.starmap(torch.equal, self._plain)):  # running statistics, which rows would part
                    return TriedCall(None)
        except Exception:  # noqa: BLE001 — it may refuse such values, or so many, and is decided by that
            return TriedCall(None)
        return TriedCall(cast("Mapping[str, RowPlacement]", dims), is_repeatable=self._is_repeatable)

    def _compared(self, total: int, parts: Iterable[Rows]) -> Iterator[Dims | None]:
        whole = self._result(RowRuns(((0, total),), total))
        for rows in parts:
            yield compare(self._result(rows), whole, rows)

    def _result(self, rows: Rows) -> Any:
        args, kwargs = map_leaves(lambda leaf: self._some(leaf, rows), self._arguments)
        with TriedForward(torch.nn.Module()) as trial:
            result = self._func(*args, **kwargs)
        self._is_repeatable = self._is_repeatable and not trial.looked and not trial.drew
        return result

    def _some(self, leaf: Any, rows: Rows) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._generic:
            whole = full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf
            self._generic[id(leaf)] = made = _generic(whole, self._generator)
            if not isinstance(leaf, BatchTensor) and made.layout is torch.strided:
                self._plain.append((made, made.clone()))
        generic = self._generic[id(leaf)]
        if isinstance(leaf, BatchTensor):
            return rows.of(generic, leaf._layout.dim).clone()  # as rows are, in memory of their own
        return rows.of(generic, self._layout.dim).clone() if id(leaf) in self._cut else generic


def _runs(rows: int) -> list[RowRuns]:
    """The two sides of two cuts: no group of rows ends at both."""
    cuts = (rows // 2, rows // 2 + 1)
    sides = ((start, end - start) for at in cuts for start, end in ((0, at), (at, rows)))
    return [RowRuns(((start, count),), rows) for start, count in sides if 0 < count < rows]


def _generic(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Other values, about where the given ones are."""
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or not tensor.numel():
            return tensor
        is_real = tensor.is_floating_point() or tensor.is_complex()
        kind = torch.float32 if is_real and tensor.element_size() <= 4 else torch.float64
        noise = torch.rand(tensor.shape, generator=generator, dtype=kind, device="cpu").to(tensor.device)
        if tensor.dtype is torch.bool:
            return noise > 0.5 if tensor.numel() > 1 else torch.ones_like(tensor)
        if not is_real:
            least, most = tensor.min(), tensor.max()
            return least + noise.mul_(most - least + 1).to(tensor.dtype)
        return tensor + noise.mul_(0.1 * float(usual_size(tensor)) or 0.1).to(tensor.dtype)
