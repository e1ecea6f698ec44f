"""How the rows of a batch are dealt to the ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How one dimension of a global tensor is dealt: rank r holds ``counts[r]`` consecutive rows of it."""

    counts: tuple[int, ...]
    dim: int
    total: int

    @classmethod
    def deal(cls, rows: int, dim: int, size: int) -> Layout | None:
        """Deal rows in contiguous runs whose sizes differ by at most one; None if a rank would get none."""
        if rows < size:
            return None
        counts = tuple(rows // size + (rank < rows % size) for rank in range(size))
        return cls(counts, dim, rows)

    def at(self, dim: int) -> Layout:
        """The same rows along another dimension."""
        return self if dim == self.dim else Layout(self.counts, dim, self.total)

    def times(self, factor: int, dim: int) -> Layout:
        """Every row became ``factor`` rows."""
        return Layout(tuple(count * factor for count in self.counts), dim, self.total * factor)

    def divided(self, factor: int, dim: int) -> Layout | None:
        """Every ``factor`` rows became one; None where that would cut across ranks."""
        if factor == 0 or any(count % factor for count in self.counts):
            return None
        return Layout(tuple(count // factor for count in self.counts), dim, self.total // factor)

    def span(self, rank: int) -> tuple[int, int]:
        """First row of a rank, and how many it holds."""
        return sum(self.counts[:rank]), self.counts[rank]
