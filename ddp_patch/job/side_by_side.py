"""Where ranks came, point by point, side by side: with a mark at the first point in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .divergence import named_ranks
from .recorder import TracePoint

BEFORE, AFTER = 6, 3  # points that are shown around the one in question
_NOT_THERE = "-"

Points = Mapping[int, TracePoint]  # by number


def first_difference(ranks: Mapping[int, Points]) -> int | None:
    """Give the number of the first point that is not the same on all ranks that are known to have come to it.

    Args:
        ranks: and their points, of which the oldest may be forgotten.
    """
    last = min(max(points, default=0) for points in ranks.values())
    counts = sorted({count for points in ranks.values() for count in points})
    for count in counts:
        came = [points[count] for points in ranks.values() if count in points]
        if len({(point.what.partition("(")[0], point.size, point.line) for point in came}) > 1:
            return count
    return last + 1 if last < (counts[-1] if counts else 0) else None


def table(ranks: Mapping[int, Points], count: int) -> str:
    """Lay ranks side by side around a point. Ranks that came the same way share a column.

    Args:
        ranks: and their points.
        count: number of the point in question.
    """
    around = range(max(count - BEFORE, 1), count + AFTER + 1)
    shown = [number for number in around if any(number in points for points in ranks.values())]
    columns: dict[tuple[str, ...], list[int]] = {}
    for rank, points in sorted(ranks.items()):
        columns.setdefault(tuple(_cell(points, number) for number in shown), []).append(rank)
    heads = ["point", *(named_ranks(its) for its in columns.values())]
    rows = [heads]
    for index, number in enumerate(shown):
        mark = "> " if number == count else ""
        rows.append([f"{mark}{number}", *(cells[index] for cells in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_line(row, widths) for row in rows) + "\n"


def _cell(points: Points, number: int) -> str:
    point = points.get(number)
    if point is None:  # forgotten, or not yet come to
        return "..." if points and number < min(points) else _NOT_THERE
    return f"{point.what}  {point.line}".rstrip()


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    number, *cells = row
    padded = [number.rjust(widths[0]), *(cell.ljust(width) for cell, width in zip(cells, widths[1:], strict=True))]
    return f"  {'   '.join(padded)}".rstrip()
