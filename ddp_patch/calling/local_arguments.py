"""The way into a model: a call's arguments become this rank's rows."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.crossings import replicate, shard_argument
from ..batch.forms import to_local
from ..batch.layout import Layout, RowPlacement
from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves, map_leaves
from .argument_names import argument_names
from .calls import Call
from .graph_roles import Roles
from .graph_units import GRAPHS, UnitPlacement
from .graphs import Graphs, graphs_of
from .items import row_count_of_lists, row_count_of_tensors


@dataclass(frozen=True)
class LocalArgs:
    """A call's arguments cut to rows."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: Layout  # of the first batch argument
    assumed_dims: tuple[tuple[str, int], ...] = ()  # plain arguments dealt in another dimension than the batch's own
    holds_dealt_tensors: bool = False  # made of plain tensors of the script's, along the dimension that was chosen
    is_of_several_batches: bool = False  # it has rows of several batches, and is not cut
    items: int | None = None  # entries of its lists, one for each row; it is not cut
    ambiguity: str = ""  # why a plain argument's batch dimension cannot be told; it is not cut
    graphs: Graphs | None = None  # it is given a batch of graphs, whose graphs are its rows
    is_of_batches_alone: bool = False  # each argument was one

    @property
    def why_uncut(self) -> str:
        """Why a forward runs on batches whatever it does; empty if its arguments are cut."""
        if self.is_of_several_batches:
            return "it is called with batches of different sizes"
        if self.layout.order is not None:
            return "it is called with rows in another order, as sorting gives them"
        of_items = "it is given a list with an entry for each row, and every rank does what it does entry by entry"
        return self.ambiguity if self.items is None else of_items

    def layout_at(self, place: RowPlacement | UnitPlacement) -> Layout:
        """How an output is dealt that has its rows in a place."""
        if isinstance(place, RowPlacement):
            return place.of(self.layout)
        assert self.graphs is not None
        return self.graphs.layouts[place.unit].at(place.dim)

    @functools.cached_property
    def leaves(self) -> list[tuple[str, Any]]:
        """What is in its arguments, and where, as in those of the call."""
        return leaves((self.args, self.kwargs))


def local_arguments(
    call: Call,
    rows: int | None,
    batch_dims: Mapping[str, int | None],
    memory: dict[tuple[str, int], int | None],
    dim: int | None,
    is_named: bool,
    is_scripts: bool,
    items: int | None,
    roles: Callable[[], Roles],
) -> LocalArgs | None:
    """Cut a call's arguments to this rank's rows; None if nothing in them is a batch.

    Args:
        call: of a module.
        rows: size of the batch the script is working on, as far as it is known.
        batch_dims: the option, by argument name.
        memory: the batch dimensions that this module's plain arguments had before, by name and number of dimensions:
            a memory bank does not become a batch when the last batch happens to have its size.
        dim: the dimension that ``nn.DataParallel(dim=...)`` scatters, or that was found to be the batch's.
        is_named: the script names it.
        is_scripts: the script makes the call, with a batch even without a loader. A module may pass on a table.
        items: if a forward makes it that is given lists with an entry for each row, how many entries.
        roles: gives what its arguments were in calls with batches of graphs.
    """
    found = [leaf for _, leaf in call.leaves if isinstance(leaf, BatchTensor)]
    rows = rows if items is None else items
    are_batches = len(found) == len(call.args) + len(call.kwargs) == len(call.leaves)
    if items is not None or (is_scripts and not is_named and not are_batches):
        known = found[0]._layout.total if found else rows
        count = row_count_of_lists([*call.args, *call.kwargs.values()], known, bool(found))
        if count is not None:
            layout = found[0]._layout if found else Layout.deal(count, 0, World.get().size)
            return None if layout is None else LocalArgs(call.args, call.kwargs, layout, items=count)
    if found:
        return _enter_with(found, call, batch_dims, memory, None if is_named else dim)
    if is_scripts and not is_named and (graphs := graphs_of(call, roles(), World.get().size)) is not None:
        return LocalArgs(*graphs.local(World.get().rank), graphs.layouts[GRAPHS], graphs=graphs)
    counted = row_count_of_tensors(call, batch_dims, dim or 0, is_scripts) if is_scripts or items is not None else None
    for count in (rows, counted):
        layout = None if count is None else Layout.deal(count, dim or 0, World.get().size)
        local_args = (
            None
            if layout is None
            else _of_plain_tensors(layout, call, batch_dims, memory, items is not None or count != rows)
        )
        if local_args is not None:
            return dataclasses.replace(local_args, holds_dealt_tensors=is_scripts and count != rows)
    return None


def _enter_with(
    found: list[BatchTensor],
    call: Call,
    batch_dims: Mapping[str, int | None],
    memory: dict[tuple[str, int], int | None],
    dim: int | None,
) -> LocalArgs:
    layout = found[0]._layout
    if len(found) > 1 and not all(batch._layout.lies_as(layout) for batch in found):
        return LocalArgs(call.args, call.kwargs, layout, is_of_several_batches=True)
    is_plain = len(found) == len(call.leaves) == len(call.args) and not call.kwargs
    if is_plain and all(map(operator.is_, found, call.args)):  # model(x), in every step
        local = tuple(map(to_local, found))
        local_args = LocalArgs(local, {}, layout, is_of_batches_alone=True)
        paths = map(operator.itemgetter(0), call.leaves)
        vars(local_args)["leaves"] = list(zip(paths, local, strict=True))
        return local_args
    if not any(isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor) for _, leaf in call.leaves):
        memo: dict[int, Any] = {}
        return LocalArgs(
            map_leaves(to_local_form, call.args, memo), map_leaves(to_local_form, call.kwargs, memo), layout
        )
    dims = {batch._layout.dim for batch in found}
    assumed_dims: list[tuple[str, int]] = []
    ambiguities: list[str] = []

    def cut(name: str, leaf: Any) -> Any:
        if isinstance(leaf, BatchTensor):
            return to_local(leaf)
        if not isinstance(leaf, Tensor) or leaf.is_nested:  # which no function takes rows of (torch 2.13)
            return leaf
        key = (name, leaf.dim())
        if name not in batch_dims and key in memory:
            recorded = memory[key]
            at = recorded if recorded is not None and leaf.shape[recorded] == layout.total else None
        elif name not in batch_dims and dim not in dims and (why := _ambiguity(name, leaf, layout.total, dims)):
            ambiguities.append(why)
            return leaf
        else:
            at = memory[key] = _plain_dim(name, leaf, layout.total, dims, batch_dims)
            if at is not None and at not in dims and name not in batch_dims:
                assumed_dims.append(key)
        return replicate(leaf) if at is None else shard_argument(leaf, layout.at(at))

    new_args, new_kwargs = _cut_all(cut, call)
    return LocalArgs(new_args, new_kwargs, layout, tuple(assumed_dims), ambiguity="".join(ambiguities[:1]))


def _plain_dim(name: str, leaf: Tensor, rows: int, dims: set[int], batch_dims: Mapping[str, int | None]) -> int | None:
    if name in batch_dims:
        chosen = batch_dims[name]
        return None if chosen is None else chosen % leaf.dim()
    fitting = [dim for dim, size in enumerate(leaf.shape) if size == rows]
    expected = [dim for dim in fitting if dim in dims]
    if not expected:
        # Recurrent states are [L, B, H] beside [B, T, F] or tokens [B]; the trial tells whether that was meant.
        return fitting[0] if len(fitting) == 1 and (leaf.dim() > 1 or _are_tokens(leaf)) else None
    return expected[0]


def _are_tokens(leaf: Tensor) -> bool:
    return leaf.dim() == 1 and leaf.dtype in (torch.int64, torch.int32)


def _ambiguity(name: str, leaf: Tensor, rows: int, dims: set[int]) -> str:
    fitting = [dim for dim, size in enumerate(leaf.shape) if size == rows]
    if len(fitting) < 2 or dims.isdisjoint(fitting):
        return ""
    return (
        f"dimensions {' and '.join(map(str, fitting))} of {name!r}, shape {tuple(leaf.shape)}, equal the batch size, "
        f"so its batch dimension cannot be told. Write ddp_patch.enable(batch_dims={{{name!r}: None}}) if it is not a "
        "batch, or its dimension if it is"
    )


def _of_plain_tensors(
    layout: Layout,
    call: Call,
    batch_dims: Mapping[str, int | None],
    memory: dict[tuple[str, int], int | None],
    anyway: bool,
) -> LocalArgs | None:
    """Deal plain tensors: GAN noise, say, or the batches of a script without a loader.

    Args:
        layout: of the rows.
        call: as for ``enter``.
        batch_dims: as for ``enter``.
        memory: as for ``enter``, of what was dealt along another dimension than the others.
        anyway: also where another dimension has the same size. Which one is dealt costs speed, never exactness, since
            a call runs on rows only once it was seen to keep them apart.
    """
    clear, dealt = True, False
    assumed_dims: list[tuple[str, int]] = []

    def cut(name: str, leaf: Any) -> Any:
        nonlocal clear, dealt
        if not isinstance(leaf, Tensor) or leaf.is_nested:
            return leaf
        if isinstance(leaf, nn.Parameter):
            return replicate(leaf)
        fitting = [dim for dim, size in enumerate(leaf.shape) if size == layout.total]
        at = layout.dim if fitting == [layout.dim] or (anyway and layout.dim in fitting) else None
        if name in batch_dims:
            chosen = batch_dims[name]
            at = None if chosen is None else chosen % leaf.dim()
        elif fitting and at is None and not anyway:
            clear = False
        elif at is None and len(fitting) == 1 and leaf.dim() > 1 and memory.get((name, leaf.dim()), 0) is not None:
            at = fitting[0]  # recurrent states
            assumed_dims.append((name, leaf.dim()))
        if at is None:
            return replicate(leaf)
        dealt = True
        return shard_argument(leaf, layout.at(at))

    new_args, new_kwargs = _cut_all(cut, call)
    return LocalArgs(new_args, new_kwargs, layout, tuple(assumed_dims)) if clear and dealt else None


def _cut_all(cut: Callable[[str, Any], Any], call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    memo: dict[int, Any] = {}

    def cut_one(name: str, value: Any) -> Any:
        return map_leaves(lambda leaf: cut(name, leaf), value, memo)

    names = argument_names(call.module, len(call.args))
    new_args = tuple(cut_one(name, arg) for name, arg in zip(names, call.args, strict=True))
    new_kwargs = {name: cut_one(name, arg) for name, arg in call.kwargs.items()}
    return new_args, new_kwargs
