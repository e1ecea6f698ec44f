"""What a call is given and gives back: as one process has it, as batches, as this rank's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..batch.crossings import all_gather
from ..batch.forms import full_tensor
from ..batch.layout import Layout, RowPlacement
from ..batch.tensor import BatchTensor
from ..batch.versions import version
from ..batch.world import World
from ..errors import BatchError
from ..structure import leaves, map_leaves
from .calls import Call
from .comparison import Dims
from .local_arguments import LocalArgs

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def first_rows(args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> Arguments:
    """The first rows of the batches among some arguments, whole on every rank."""

    def take(leaf: Any) -> Any:
        if not isinstance(leaf, BatchTensor):
            return leaf
        part = leaf.narrow(leaf._layout.dim, 0, count)
        return full_tensor(part) if isinstance(part, BatchTensor) else part

    memo: dict[int, Any] = {}
    with torch.no_grad():
        return map_leaves(take, args, memo), map_leaves(take, kwargs, memo)


def as_batches(args: tuple[Any, ...], kwargs: dict[str, Any], local_args: LocalArgs) -> Arguments:
    """The arguments of a call that was entered, with batches for the plain tensors that were cut, unless as graphs."""
    if local_args.graphs is not None:  # which no layout of rows says how to cut
        return args, kwargs
    pairs = zip(leaves((args, kwargs)), leaves((local_args.args, local_args.kwargs)), strict=True)
    cuts = {id(leaf): cut for (_, leaf), (_, cut) in pairs if isinstance(leaf, Tensor)}
    total, memo = local_args.layout.total, dict[int, Any]()

    def batch(leaf: Any) -> Any:
        cut = cuts.get(id(leaf))
        if cut is None or not isinstance(leaf, Tensor) or isinstance(leaf, BatchTensor) or cut.shape == leaf.shape:
            return leaf
        dim = next(i for i, (part, size) in enumerate(zip(cut.shape, leaf.shape, strict=True)) if part != size == total)
        return BatchTensor.from_full(leaf, local_args.layout.at(dim))

    return map_leaves(batch, args, memo), map_leaves(batch, kwargs, memo)


@contextmanager
def copying_writes_back(
    args: tuple[Any, ...], kwargs: dict[str, Any], batches: Arguments, wrote: list[Tensor]
) -> Iterator[None]:
    """Surround a forward, and give the script's plain tensors what it writes to the batches that stand for them.

    Args:
        args: of a call.
        kwargs: of the call.
        batches: what ``as_batches`` made of them.
        wrote: to note what was written to.
    """
    pairs = [
        (leaf, batch, version(leaf))
        for (_, leaf), (_, batch) in zip(leaves((args, kwargs)), leaves(batches), strict=True)
        if isinstance(batch, BatchTensor) and isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor)
    ]
    yield
    for leaf, batch, before in pairs:
        wrote_rows = batch._rows is not None and version(batch._rows) != batch._rows_version
        if wrote_rows or batch._whole is not leaf:
            with torch.no_grad():
                leaf.copy_(full_tensor(batch))
        if wrote_rows or batch._whole is not leaf or version(leaf) != before:
            wrote.append(leaf)


def wrap_outputs(call: Call, outputs: Any, local_args: LocalArgs, dims: Dims) -> Any:
    """Make batches of a forward's outputs; an argument that comes out is the batch that the script gave.

    Args:
        call: that was carried out. One of ``nn.DataParallel`` gives a 0-dim output back as one value per rank, as it
            does per device.
        outputs: what its forward returned for this rank's rows.
        local_args: as this rank computes it.
        dims: where each output has its rows, by path, as was seen; None for what every rank has whole.

    Raises:
        BatchError: for an output that the trial did not see.
    """
    layout = local_args.layout
    default = RowPlacement(layout.dim)
    rank = World.get().rank
    count = layout.counts[rank]
    is_usual = type(outputs) is Tensor and not outputs.is_leaf and dims.get("", default) == default
    if is_usual and local_args.graphs is None and outputs.shape[layout.dim : layout.dim + 1] == (count,):
        return BatchTensor.from_local(outputs, layout)
    paths = {id(leaf): path for path, leaf in leaves(outputs)}
    made: dict[int, Any] = {}  # what comes out twice is one thing

    def back(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = batch(leaf)
        return made[id(leaf)]

    def batch(leaf: Tensor) -> Any:
        path = paths[id(leaf)]
        place = dims.get(path, default)
        if place is None:
            return leaf
        if leaf.dim() == 0 and call.gathers_scalars:
            return all_gather(leaf.reshape(1), Layout((1,) * len(layout.counts), 0, len(layout.counts)))
        its = local_args.layout_at(place)
        if place.dim < leaf.dim() and leaf.shape[place.dim] == its.counts[rank]:
            given = _given(call, local_args, leaf) if leaf.is_leaf else None
            return given if given is not None and given._layout == its else BatchTensor.from_local(leaf, its)
        raise BatchError(
            f"{type(call.module).__name__} returned a tensor of shape {tuple(leaf.shape)} (output{path}) for "
            f"{count} of {layout.total} rows, so it cannot be told which rows it belongs to. Return one entry per row "
            "from forward, and reduce over them outside."
        )

    return map_leaves(back, outputs)


def _given(call: Call, local_args: LocalArgs, rows: Tensor) -> BatchTensor | None:
    """The batch of the script's that these are the rows of: a leaf's gradient has its true scale there."""
    pairs = zip(call.leaves, local_args.leaves, strict=True)
    return next((whole for (_, whole), (_, cut) in pairs if cut is rows and isinstance(whole, BatchTensor)), None)


def detached(value: Any) -> Any:
    """Copies without a graph, for a trial call."""
    return map_leaves(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)
