"""Trials on batches of graphs, and functions by which graphs meet: told by NaNs in all graphs but some.

A NaN goes into whatever is computed with it, also where that is multiplied by 0, or is chosen later alone. So what is
NaN throughout, and was not before, was computed of several graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..calling.graph_units import GraphRows, counts_of, is_count
from ..ledger import model_line
from ..structure import leaves
from .given_numbers import GivenNumbers
from .memory import storages_of, written_by
from .tried_forward import TriedForward

# What they pick may be NaN throughout, or as many as there are.
_PICKING = {"gather", "index", "index_select", "masked_select", "nonzero", "select", "slice", "take"}


class GraphForward(TriedForward):
    """A forward that is tried on a batch of graphs: what it computes of their places alone is told apart."""

    def __init__(self, module: nn.Module, batch: Iterable[Tensor], rows: GraphRows, of_all: bool) -> None:
        """Note nothing yet.

        Args:
            module: with whose parameters copies are tried.
            batch: what it is given of the batch.
            rows: which graphs are tried.
            of_all: it is given others as well.
        """
        given = list(batch)
        super().__init__(module, given)
        self._counts = counts_of(rows)[0 if of_all else 1]
        self.numbers = GivenNumbers(self._is_plain, self._is_place)
        self.wrote = False  # to what it is given, past what counts versions as well
        self._given = {place for tensor in given for place in storages_of(tensor)}
        self._sizes = [its.total if of_all else its.count for its in rows.units]
        # Computed of nothing but which graph a node belongs to, and which nodes edges join.
        self._of_places = {place for tensor in given if self._has_places(tensor) for place in storages_of(tensor)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and note."""
        given = [leaf for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        of_batch = [tensor for tensor in given if self.is_of_batch(tensor)]
        name = func.name().split("::")[-1].split(".")[0]
        asked = given[:1] if name in _PICKING else given  # some places are places, whoever picks them
        are_places = all(map(self._is_place, filter(self.is_of_batch, asked)))
        are_places = are_places and not any(tensor.is_floating_point() for tensor in asked)
        if func._schema.is_mutable:
            written = (place for tensor in written_by(func, args, kwargs or {}) for place in storages_of(tensor))
            self.wrote = self.wrote or not self._given.isdisjoint(written)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if of_batch and not func.is_view:
            tensors = (leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor))
            made = {place for tensor in tensors for place in storages_of(tensor)}
            self._of_places = self._of_places | made if are_places else self._of_places - made
            if not are_places:
                self.note_made(name, of_batch, result)
        return result

    def is_count(self, tensor: Tensor) -> bool:
        """Tell so of the largest number among indices, by which forwards ask how many nodes or graphs there are."""
        return self._is_place(tensor) and is_count(tensor, self._counts)

    def note_made(self, name: str, of_batch: list[Tensor], result: Any) -> None:
        """Note what a function made of tensors of the batch, some of which are no places."""

    def _has_places(self, tensor: Tensor) -> bool:
        graphs, nodes, edges = self._sizes
        if tensor.dtype is not torch.int64 or tensor.shape not in ((2, edges), (nodes,), (graphs + 1,)):
            return False
        return tensor.dim() == 2 or (int(tensor[0]) == 0 and int(tensor[-1]) in (graphs - 1, nodes))

    def _is_place(self, tensor: Tensor) -> bool:
        return self.is_in(self._of_places, tensor)


class SpoiledForward(GraphForward):
    """One on a batch in which all graphs but some are NaNs; where whole numbers become floats as well."""

    def __init__(self, module: nn.Module, batch: Iterable[Tensor], rows: GraphRows) -> None:
        """Note nothing yet.

        Args:
            module: with whose parameters copies are tried.
            batch: what it is given of the batch.
            rows: which graphs are as they were.
        """
        super().__init__(module, batch, rows, of_all=True)
        self.tied = ""  # graphs: the line that did
        self._rows = rows

    def note_made(self, name: str, of_batch: list[Tensor], result: Any) -> None:
        """Note whether graphs meet there, and spoil what is made of whole numbers."""
        if name.startswith("new_") or name.endswith("_like"):
            return
        floats = [tensor for tensor in of_batch if tensor.is_floating_point()]
        for _, made in leaves(result):
            if not isinstance(made, Tensor) or not made.numel():
                continue
            if not made.is_floating_point():  # the largest of whole numbers, whether all are true, ...
                is_tied = name not in _PICKING and self._counts_rows(of_batch) and not self._counts_rows([made])
            elif floats:
                is_tied = name not in _PICKING and _are_spoiled_by(made, floats)
            else:
                is_tied = not self._spoil(made)
            if is_tied:
                self.tied = self.tied or model_line()

    def _counts_rows(self, tensors: list[Tensor]) -> bool:
        return any(tensor.dim() > 0 and tensor.shape[0] in self._sizes for tensor in tensors)

    def _spoil(self, made: Tensor) -> bool:
        """Make NaNs of what was computed of whole numbers of the other graphs; False if that cannot be told."""
        runs = [its.runs[0] for its in self._rows.units if made.dim() and its.total == made.shape[0]]
        if len(runs) != 1:
            return False
        ((first, count),) = runs
        with torch.no_grad():
            made[:first] = torch.nan
            made[first + count :] = torch.nan
        return True


def _are_spoiled_by(made: Tensor, floats: list[Tensor]) -> bool:
    if not bool(made.isnan().all()):
        return False
    nans = [tensor.isnan() for tensor in floats]
    return any(bool(its.any()) and not bool(its.all()) for its in nans)
