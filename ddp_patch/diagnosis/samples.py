"""What a dataset holds for its samples, as far as that is seen without loading one: lists that are as long as it is."""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_MOST = 16  # entries of a list that are looked at
_DEPTH = 3  # of datasets in datasets
_looked_at: Any = WeakIdKeyDictionary()  # later a dataset may hold what one rank has loaded or counted
_ROUNDED = 1e-3  # what processors may compute otherwise


def first_samples(dataset: Any) -> dict[str, list[Any]]:
    """Give some entries of what is as long as a dataset, by where it is held."""
    return dict(_contents(dataset, type(dataset).__name__, _DEPTH))


def differing(found: list[dict[str, list[Any]]]) -> tuple[str, list[Any]] | None:
    """Name the first list in which ranks hold something else, with what each holds in that place.

    Args:
        found: by ``first_samples`` on each rank.
    """
    for name, entries in found[0].items():
        every = [entries, *(other.get(name, []) for other in found[1:])]
        for place in range(len(entries)):
            there = [its[place] if place < len(its) else None for its in every]
            if not all(_is_same(there[0], other) for other in there[1:]):
                return name, there
    return None


def _contents(thing: Any, name: str, depth: int) -> Iterator[tuple[str, list[Any]]]:
    count = None if isinstance(thing, torch.utils.data.IterableDataset) else _length(thing)
    if not count or depth < 0:
        return
    if isinstance(thing, (list, tuple)):
        yield name, _some(thing)
        return
    if thing in _looked_at:
        return
    with contextlib.suppress(TypeError):  # it cannot be referred to weakly
        _looked_at[thing] = True
    for attribute, value in sorted(getattr(thing, "__dict__", {}).items()):
        where = f"{name}.{attribute}"
        if _length(value) == count and (isinstance(value, (list, tuple)) or _is_array(value)):
            yield where, _some(value)
        elif isinstance(value, torch.utils.data.Dataset):
            yield from _contents(value, where, depth - 1)
        elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
            for index, item in enumerate(value):
                if isinstance(item, torch.utils.data.Dataset) or _is_array(item):
                    yield from _within(item, f"{where}[{index}]", count, depth)


def _within(item: Any, where: str, count: int, depth: int) -> Iterator[tuple[str, list[Any]]]:
    if not _is_array(item):
        yield from _contents(item, where, depth - 1)
    elif _length(item) == count:
        yield where, _some(item)


def _some(things: Any) -> list[Any]:
    step = max(1, len(things) // _MOST)
    return [_summary(things[place]) for place in range(0, len(things), step)]


def _summary(thing: Any, depth: int = 2) -> Any:
    if isinstance(thing, (str, os.PathLike)):
        return os.path.basename(os.fspath(thing))  # folders may be each rank's own
    if isinstance(thing, bytes):
        return zlib.crc32(thing)
    if isinstance(thing, (bool, int, float)):
        return thing
    if _is_array(thing):
        return _of_array(thing)
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)) and depth:
        return [_summary(item, depth - 1) for item in thing[:3]]
    return type(thing).__name__


def _of_array(array: Any) -> Any:
    numbers = array.reshape(-1)
    if len(numbers) == 0:
        return []
    ends = [numbers[0], numbers[-1]]
    try:
        return [float(end) for end in ends]
    except (TypeError, ValueError, RuntimeError):
        return [str(end) for end in ends] if getattr(array.dtype, "kind", "") in "US" else str(array.dtype)


def _is_array(thing: Any) -> bool:
    if isinstance(thing, torch.Tensor):
        return thing.device.type == "cpu" and thing.layout is torch.strided
    return hasattr(thing, "dtype") and hasattr(thing, "reshape") and hasattr(thing, "ndim")


def _is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right) and not {type(left), type(right)} <= {bool, int, float}:
        return True  # what one rank has loaded and others have not, say: nothing is known of it
    if isinstance(left, list) and isinstance(right, list):
        return all(map(_is_same, left, right))
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right or math.isclose(left, right, rel_tol=_ROUNDED, abs_tol=1e-6) or left != left
    return bool(left == right)


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # noqa: BLE001 — the author's code, or none
        return None
