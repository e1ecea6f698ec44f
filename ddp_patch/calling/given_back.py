"""What a forward gives back of the script's plain tensors that were dealt: the script finds its own there.

A forward may return an argument, or a view of one, such as ``nn.Identity`` and ``nn.Flatten`` do. It is the script's
tensor then, and what is written to it is written to the argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from ..batch.layout import Layout
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves, map_leaves
from .calls import Call
from .comparison import Dims
from .local_arguments import LocalArgs


class _Number(int):
    """Of what a forward gave back, in its place."""


class GivenBack:
    """The script's own tensors among the outputs of one call."""

    def __init__(self, given: list[tuple[str, Any]], passed: list[tuple[str, Any]]) -> None:
        """Note what the forward is given for them.

        Args:
            given: leaves of the arguments of a call, as the script makes it.
            passed: the same, as the forward gets them.
        """
        self.own = [
            (own, its)
            for (_, own), (_, its) in zip(given, passed, strict=True)
            if its is not own and type(own) is Tensor
        ]
        self._found: list[Tensor] = []

    def numbered(self, outputs: Any, local: LocalArgs, dims: Dims, wrote: Collection[Tensor] = ()) -> Any:
        """Give the outputs with numbers in place of what is the script's.

        Args:
            outputs: of the forward.
            local: how its arguments are cut.
            dims: where its outputs have their rows, by path; what is a batch tells so itself.
            wrote: the script's tensors that the forward wrote to.
        """
        if not self.own:
            return outputs
        own_by_id = {
            id(its): own
            for own, its in self.own
            if not (its.requires_grad and any(own is tensor for tensor in wrote))  # it has a graph, and own has none
        }
        paths = {id(leaf): path for path, leaf in leaves(outputs)}

        def number(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            own = own_by_id.get(id(leaf))
            if own is None and isinstance(leaf, BatchTensor):
                own = self._view(leaf._whole, None) if leaf._rows is None else self._view(leaf._rows, leaf._layout)
            elif own is None:
                place = dims.get(paths[id(leaf)])
                if place is None:  # every rank has it whole
                    return leaf
                own = self._view(leaf, local.layout_at(place))
            if own is None:
                return self._apart(leaf)
            self._found.append(own)
            return _Number(len(self._found) - 1)

        return map_leaves(number, outputs)

    def _view(self, form: Tensor | None, layout: Layout | None) -> Tensor | None:
        """Give what one process has where the forward has a view of the script's memory; None of another.

        Args:
            form: that it has, rows or the whole.
            layout: how rows are dealt.
        """
        if form is None or form.requires_grad or form.layout is not torch.strided or form.is_conj() or form.is_neg():
            return None
        for own, passed in self.own:
            if layout is None:
                if own.layout is torch.strided and own.untyped_storage()._cdata == form.untyped_storage()._cdata:
                    return form
            elif layout.is_consecutive and (view := _like(form, own, passed, layout)) is not None:
                return view
        return None

    def copied(self, value: Any) -> Any:
        """Give what a forward left in an attribute, with copies of what is in the script's memory."""
        if not self.own:
            return value
        memory = {passed.untyped_storage()._cdata for _, passed in self.own if passed.layout is torch.strided}

        def copy(leaf: Any) -> Any:
            is_plain = isinstance(leaf, Tensor) and leaf.layout is torch.strided
            return leaf.clone() if is_plain and leaf.untyped_storage()._cdata in memory else leaf

        return map_leaves(copy, value)

    def _apart(self, leaf: Tensor) -> Tensor:
        """Give what is in the script's memory and no view of that, or what is not, in memory of its own.

        This rank would write to its rows of it alone.
        """
        rows = leaf._rows if isinstance(leaf, BatchTensor) else leaf
        if rows is None or rows.layout is not torch.strided:
            return leaf
        memory = rows.untyped_storage()._cdata
        if not any(own.layout is torch.strided and own.untyped_storage()._cdata == memory for own, _ in self.own):
            return leaf
        return BatchTensor.from_local(rows.clone(), leaf._layout) if isinstance(leaf, BatchTensor) else rows.clone()

    def put_back(self, result: Any) -> Any:
        """Give outputs with the script's tensors where the numbers are."""
        if not self._found:
            return result
        return map_leaves(lambda leaf: self._found[leaf] if type(leaf) is _Number else leaf, result)


def dealt_tensors(call: Call, local: LocalArgs) -> Iterator[tuple[str, Tensor]]:
    """Give the script's plain tensors that a call has dealt, and what names them."""
    for (path, own), (_, its) in zip(call.leaves, local.leaves, strict=True):
        if its is not own and type(own) is Tensor and isinstance(its, Tensor) and its.shape != own.shape:
            yield f"argument {path} of {type(call.module).__name__}", own


def _like(form: Tensor, own: Tensor, passed: Tensor, layout: Layout) -> Tensor | None:
    """Give what is to the script's tensor as a view of rows is to those; None of what is no view of them.

    Args:
        form: that a forward gave back.
        own: the script's tensor.
        passed: what the forward got for it.
        layout: how the rows of the form are dealt.
    """
    rows = passed._rows if isinstance(passed, BatchTensor) else passed
    if rows is None or not own.layout == rows.layout == torch.strided:
        return None
    if rows.untyped_storage()._cdata != form.untyped_storage()._cdata or own.itemsize != form.itemsize:
        return None
    offset = int(form.storage_offset() - rows.storage_offset())
    at = next((dim for dim, (size, part) in enumerate(zip(own.shape, rows.shape, strict=True)) if size != part), None)
    if at is None or offset < 0:
        return None
    stride, rest = divmod(own.stride(at) * own.shape[at], layout.total)
    strides = list(form.stride())
    both = zip(rows.shape, rows.stride(), own.stride(), strict=True)
    if not all(part < 2 or its == mine for part, its, mine in both):
        start, _ = layout.span(World.get().rank)
        found = _in_place(form, offset, rows, own, at, start * own.shape[at] // layout.total)
        if found is None:
            return None
        offset, strides = found[0] - start * stride, found[1]
    if rest or (form.shape[layout.dim] > 1 and strides[layout.dim] != stride):
        return None
    strides[layout.dim] = stride
    shape = [layout.total if dim == layout.dim else size for dim, size in enumerate(form.shape)]
    view = own.detach() if own.requires_grad else own  # as the form is
    view = view if view.dtype == form.dtype else view.view(form.dtype)
    return view.as_strided(shape, strides, own.storage_offset() + offset)


def _in_place(
    form: Tensor, offset: int, rows: Tensor, own: Tensor, dim: int, start: int
) -> tuple[int, list[int]] | None:
    """Tell where in the script's memory a view of copied rows lies; None if it is no view of that.

    Args:
        form: the view.
        offset: of it, in the memory of the rows.
        rows: a copy, which lies otherwise.
        own: the script's tensor.
        dim: along which it was cut.
        start: its first row among those of the rank.

    Returns:
        the place of the first entry, from that of the script's tensor, and strides.
    """

    def extent(tensor: Tensor) -> int:
        return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))

    places = torch.arange(extent(own)).as_strided(own.shape, own.stride()).narrow(dim, start, rows.shape[dim])
    memory = torch.full((max(extent(rows), offset + extent(form)),), -1)
    memory.as_strided(rows.shape, rows.stride()).copy_(places)
    found = memory.as_strided(form.shape, form.stride(), offset)
    first = int(found.flatten()[0])
    strides = [int(found.select(d, 1).flatten()[0]) - first if n > 1 else 0 for d, n in enumerate(form.shape)]
    expected = torch.full(form.shape, first)
    for d, (size, stride) in enumerate(zip(form.shape, strides, strict=True)):
        expected += (torch.arange(size) * stride).view([-1 if other == d else 1 for other in range(form.dim())])
    return (first, strides) if first >= 0 and torch.equal(found, expected) else None
