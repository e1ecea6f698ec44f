"""Objects of torch_geometric's that hold a batch of graphs, and the tensors in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import wrapt
from torch import Tensor

from ..structure import leaves, map_leaves

_PLAIN = (bool, int, float, str, type(None))
_DATA: list[type] = []  # its class of graphs, and of batches of them


def _found(module: Any) -> None:
    _DATA.append(module.Data)


wrapt.register_post_import_hook(_found, "torch_geometric.data")


def is_graph(leaf: Any) -> bool:
    """Tell an object that holds a graph, or several."""
    return isinstance(leaf, tuple(_DATA))


def is_graph_batch(leaf: Any) -> bool:
    """Tell an object that holds a batch of graphs."""
    return is_graph(leaf) and isinstance(getattr(leaf, "batch", None), Tensor)


# How many graphs there are, which tensors tell as well, and by which they are taken apart (torch_geometric 2.8).
_OF_ALL = ("_num_graphs", "_slice_dict", "_inc_dict")


def settings_of(data: Any, count: int) -> tuple[tuple[str, Any], ...] | None:
    """Give what such an object holds beside tensors and lists of an entry for each graph; None if that is no setting.

    Args:
        data: the object.
        count: graphs that it holds.
    """
    others = {key: value for key, value in data.to_dict().items() if not isinstance(value, Tensor)}
    lists = [key for key, value in others.items() if type(value) is list and len(value) == count]
    if not all(isinstance(item, _PLAIN) for key in lists for item in others[key]):
        return None
    settings = tuple((key, value) for key, value in others.items() if key not in lists)
    return settings if all(isinstance(value, _PLAIN) for _, value in settings) else None


def content_of(data: Any) -> dict[str, Any]:
    """Give what such an object holds, for comparison: lists as they are now."""
    return {key: copy.copy(value) if type(value) is list else value for key, value in data.to_dict().items()}


def with_tensors(data: Any, function: Callable[[Any], Any]) -> Any:
    """Copy such an object, with what a function makes of the tensors and lists that it holds."""
    its = copy.copy(data)
    for key, value in data.to_dict().items():
        its[key] = function(value) if type(value) is list else map_leaves(function, value)
    for name in _OF_ALL:
        if hasattr(its, name):
            delattr(its, name)
    return its


def tensors_by_path(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give the tensors in a structure, and in such objects there, with the paths that lead to them."""
    for at, leaf in leaves(value, path):
        if isinstance(leaf, Tensor):
            yield at, leaf
        elif is_graph_batch(leaf):
            yield from tensors_by_path(leaf.to_dict(), at)


def tensors_in(value: Any) -> list[Tensor]:
    """Give the tensors alone."""
    return [tensor for _, tensor in tensors_by_path(value)]
