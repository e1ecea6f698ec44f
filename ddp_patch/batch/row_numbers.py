"""Which of a batch's rows some are: runs of those that lie side by side, or their numbers one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .layout import RowPlacement


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Some of a batch's rows: runs of consecutive ones, by their first and their number, in each of equal pieces."""

    runs: tuple[tuple[int, int], ...]
    total: int
    pieces: int = 1  # of one size, side by side; the runs are those of the first

    @property
    def count(self) -> int:
        """How many they are."""
        return sum(count for _, count in self.runs) * self.pieces

    def before(self, row: int) -> int:
        """How many of them come before one of all rows."""
        of_piece = self.total // self.pieces
        whole, rest = divmod(row, of_piece) if of_piece else (0, 0)
        parts = sum(min(max(rest - start, 0), count) for start, count in self.runs)
        return whole * sum(count for _, count in self.runs) + parts

    def numbers(self, device: torch.device) -> Tensor:
        """Number them among all rows: int64 ``[count]``, ascending."""
        return self.of(torch.arange(self.total, device=device), 0)

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which of them some rows are.

        Args:
            rows: int64, numbers among all rows.

        Returns:
            numbers among these rows, and whether they are of them at all.
        """
        if len(self.runs) != 1 or self.pieces > 1:
            return _found(self.numbers(rows.device), rows)
        ((start, count),) = self.runs
        return rows - start, (rows >= start) & (rows < start + count)

    def times(self, factor: int) -> RowRuns:
        """Every row became ``factor`` rows."""
        runs = tuple((start * factor, count * factor) for start, count in self.runs)
        return RowRuns(runs, self.total * factor, self.pieces)

    def at(self, place: RowPlacement) -> RowRuns:
        """The same rows in a result."""
        its = self.times(place.factor)
        return its if place.times == 1 else RowRuns(its.runs, its.total * place.times, its.pieces * place.times)

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """Take them from a tensor that has all rows: a view of one run, a copy of several."""
        views = self._views(tensor, dim)
        if len(views) == 1 and self.pieces == 1:
            return views[0]
        if tensor.is_contiguous() or 0 in tensor.stride():
            return torch.cat(views, dim) if self.pieces == 1 else views[0].flatten(dim, dim + 1)
        strides = tensor.stride()  # the copy lies in memory as the tensor does
        order = sorted(range(tensor.dim()), key=lambda at: -strides[at])
        taken = self.of(tensor.permute(order).contiguous(), order.index(dim))
        return taken.permute([order.index(at) for at in range(tensor.dim())])

    def put(self, rows: Tensor, whole: Tensor, dim: int) -> None:
        """Copy them to where they belong in the whole."""
        if self.pieces > 1:
            self._views(whole, dim)[0].copy_(rows.unflatten(dim, (self.pieces, -1)))
            return
        sizes = [count for _, count in self.runs]
        for view, run in zip(self._views(whole, dim), rows.split(sizes, dim), strict=True):
            view.copy_(run)

    def _views(self, tensor: Tensor, dim: int) -> list[Tensor]:
        if self.pieces > 1:
            tensor, dim = tensor.unflatten(dim, (self.pieces, -1)), dim + 1
        return [tensor.narrow(dim, start, count) for start, count in self.runs]


class RowNumbers:
    """Some of a batch's rows, by their numbers among all, which ascend. Stands where ``RowRuns`` do."""

    def __init__(self, numbers: Tensor, total: int) -> None:
        """Be these rows.

        Args:
            numbers: int64 ``[count]``.
            total: how many rows there are in all.
        """
        self.own, self.total = numbers, total

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.own)

    @property
    def device(self) -> torch.device:
        """Where their numbers are."""
        return self.own.device

    def __eq__(self, other: object) -> bool:
        """Compare the rows."""
        if not isinstance(other, RowNumbers):
            return NotImplemented
        return self.total == other.total and torch.equal(self.own, other.own)

    __hash__ = None  # type: ignore[assignment]

    def before(self, row: int) -> int:
        """How many of them come before one of all rows."""
        return int((self.own < row).sum())

    def times(self, factor: int) -> RowNumbers:
        """Every row became ``factor`` rows."""
        its = self.own[:, None] * factor + torch.arange(factor, device=self.own.device)
        return RowNumbers(its.flatten(), self.total * factor)

    def repeated(self, times: int) -> RowNumbers:
        """All rows came several times over."""
        its = self.own + torch.arange(times, device=self.own.device)[:, None] * self.total
        return RowNumbers(its.flatten(), self.total * times)

    def part(self, start: int, stop: int) -> RowNumbers:
        """Rows from one to another became all."""
        return RowNumbers(self.own[(self.own >= start) & (self.own < stop)] - start, stop - start)

    def at(self, place: RowPlacement) -> RowNumbers:
        """The same rows in a result."""
        return self.times(place.factor).repeated(place.times)

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """Take them from a tensor that has all rows: a copy."""
        return tensor.index_select(dim, self.own.to(tensor.device))

    def put(self, rows: Tensor, whole: Tensor, dim: int) -> None:
        """Copy them to where they belong in the whole."""
        whole.index_copy_(dim, self.own.to(whole.device), rows)

    def numbers(self, device: torch.device) -> Tensor:
        """Number them among all rows: int64 ``[count]``."""
        return self.own.to(device)

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which of them some rows are.

        Args:
            rows: int64, numbers among all rows.

        Returns:
            numbers among these rows, and whether they are of them at all.
        """
        return _found(self.numbers(rows.device), rows)


Rows = RowRuns | RowNumbers


def _found(numbers: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Find numbers of rows among some that ascend: where they are, and whether they are there."""
    numbers = numbers.contiguous()
    at = torch.searchsorted(numbers, rows.contiguous()).clamp(max=max(len(numbers) - 1, 0))
    return at, numbers[at] == rows if len(numbers) else torch.zeros_like(rows, dtype=torch.bool)
