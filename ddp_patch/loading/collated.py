"""What ``default_collate`` makes of this rank's rows: one kind on all ranks, or the batch would be of no rank's kind.

It takes the kind of a batch from its first row: numbers that are sometimes whole become integers on one rank and floats
on another; keys stand in the order of each rank's first row. Rows of several shapes, which it refuses, may be alike on
each rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch
from torch import Tensor

from ..batch.layout import Layout
from ..batch.tensor import BatchTensor
from ..errors import BatchError
from ..ledger import script_line

Exchange = Callable[[Any], list[Any]]


class Collated:
    """The kinds of one loader's batches: tasks that take turns may have several."""

    def __init__(self, described: str, is_settled: bool) -> None:
        """Know of none yet.

        Args:
            described: names the loader.
            is_settled: the script has said that its rows are dealt, generators or not.
        """
        self._described = described
        self._is_settled = is_settled
        self._agreed: set[str] = set()
        self._agreed_plain: set[tuple[Any, ...]] = set()  # the same, of lists that hold nothing but plain tensors

    def as_batch(self, data: Any, layout: Layout, exchange: Exchange, seeds_made: Callable[[], list[str]]) -> Any:
        """Make batches of collated rows.

        Args:
            data: of this rank.
            layout: of the batch.
            exchange: gives what every rank gave. All come to it with the first batch of a kind; where the rows of some
                ranks alone make another one, these meet nobody, which is an error too.
            seeds_made: tells the seeds of the generators that the dataset has made by now; it held none.

        Raises:
            BatchError: where they are not of one kind, or the ranks drew alike for different rows.
        """
        plain = tuple([(leaf.dtype, leaf.shape[1:]) for leaf in data]) if are_plain_tensors(data) else None
        if plain in self._agreed_plain and len(self._agreed) == 1:  # in nearly every step
            return type(data)([BatchTensor.from_local(leaf, layout) for leaf in data])
        kind = _kind(data)
        # Where there are several, each rank may have one that was agreed on, and not the same.
        if kind not in self._agreed or len(self._agreed) > 1:
            reported = exchange((kind, [] if self._is_settled else seeds_made()))
            made = [seeds for _, seeds in reported if seeds]
            if len(made) == len(reported) and all(seeds == made[0] for seeds in made):
                raise BatchError(
                    f"{script_line()}: {self._described} made a generator while it was read ({made[0][0]}), so that "
                    "each rank drew for its own rows what one process draws for the first ones. Make it in __init__, "
                    "or write loader = ddp_patch.read_once(loader)."
                )
            for rank, (its, _) in enumerate(reported):
                if its != kind:
                    raise BatchError(
                        f"{script_line()}: {self._described}: the rows of this rank make {kind}, those of rank {rank} "
                        f"make {its}. {_ADVICE}"
                    )
            self._agreed.add(kind)
        if plain is not None:
            self._agreed_plain.add(plain)
        return as_batch(data, layout, exchange)


_ADVICE = (
    "torch's default_collate takes the type of a batch, and the order of its keys, from its first row, and wants rows "
    "of one shape and lists of one length. Give all rows the same: float(value) in the dataset, a collate_fn that pads."
)


def are_plain_tensors(data: Any) -> bool:
    """Tell a list of tensors that have rows and no graph, as most loaders give."""
    if type(data) is not list and type(data) is not tuple:
        return False
    for leaf in data:
        if type(leaf) is not Tensor or leaf.requires_grad or leaf.is_nested or not leaf.dim():
            return False
        if leaf.layout is not torch.strided:
            return False
    return True


def _kind(data: Any) -> str:
    if isinstance(data, Tensor):
        return f"{str(data.dtype).removeprefix('torch.')}{list(data.shape[1:]) or ''}"
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key!r}: {_kind(item)}" for key, item in data.items()) + "}"
    if _is_sequence(data):
        if _are_strings(data):  # one for each row
            return "[strings]"
        return f"[{len(data)}: {', '.join(dict.fromkeys(map(_kind, data)))}]"  # kinds of which there may be many
    return type(data).__name__


def as_batch(data: Any, layout: Layout, exchange: Exchange) -> Any:
    """Make batches of collated rows: tensors keep their place, lists of strings are shared, all in one exchange."""
    strings = list(_lists_of_strings(data))
    of_ranks = zip(*exchange(strings), strict=True) if strings else ()
    whole = iter([[item for part in parts for item in part] for parts in of_ranks])
    return _as_batch(data, layout, whole)


def _lists_of_strings(data: Any) -> Iterator[list[Any]]:
    if isinstance(data, Mapping):
        for item in data.values():
            yield from _lists_of_strings(item)
    elif isinstance(data, (list, tuple)) and _are_strings(data):
        yield list(data)
    elif not isinstance(data, Tensor) and _is_sequence(data):
        for item in data:
            yield from _lists_of_strings(item)


def _as_batch(data: Any, layout: Layout, strings: Iterator[list[Any]]) -> Any:
    if isinstance(data, Tensor):
        return BatchTensor.from_local(data, layout) if data.dim() > 0 else data
    if isinstance(data, Mapping):
        entries = {key: _as_batch(item, layout, strings) for key, item in data.items()}
        if type(data) is dict:
            return entries
        if not isinstance(data, MutableMapping):
            return type(data)(entries)  # type: ignore[call-arg]  # as default_collate does
        twin = copy.copy(data)
        twin.update(entries)
        return twin
    if not _is_sequence(data):
        return data
    if isinstance(data, (list, tuple)) and _are_strings(data):
        return type(data)(next(strings))
    items = [_as_batch(item, layout, strings) for item in data]
    if hasattr(data, "_fields"):
        return type(data)(*items)
    if type(data) in (list, tuple) or not isinstance(data, MutableSequence):
        return type(data)(items)
    clone = copy.copy(data)
    clone[:] = items
    return clone


def _is_sequence(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, (str, bytes))


def _are_strings(data: Any) -> bool:
    return len(data) > 0 and all(isinstance(item, (str, bytes)) for item in data)
