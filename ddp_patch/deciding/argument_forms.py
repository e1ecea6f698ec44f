"""What a forward may branch on of the arguments that it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch.tensor import BatchTensor
from ..calling.calls import Call
from ..calling.graph_data import is_graph_batch
from ..calling.local_arguments import LocalArgs
from .containers import PLAIN
from .guards import Guards
from .watched_numbers import magnitude


def forms_of(call: Call, local_args: LocalArgs, guards: Guards) -> tuple[Any, ...]:
    """Fingerprint the form of a call: its structure, values, and what is a batch; not sizes.

    Args:
        call: of a module.
        local_args: how its arguments are cut.
        guards: of the module.
    """
    if local_args.graphs is not None:
        others = [leaf for leaf in call.leaves if not isinstance(leaf[1], Tensor) and not is_graph_batch(leaf[1])]
        return (*local_args.graphs.form, *((path, _form(leaf, leaf, guards)) for path, leaf in others))
    pairs = zip(call.leaves, local_args.leaves, strict=True)
    forms = [(path, _form(leaf, local, guards)) for (path, leaf), (_, local) in pairs]
    for number, value in enumerate(call.args):
        if isinstance(value, _CONTAINERS):
            forms.append((f"[0][{number}]", _containers_in(value)))
    for name, value in call.kwargs.items():
        if isinstance(value, _CONTAINERS):
            forms.append((f"[1][{name!r}]", _containers_in(value)))
    return tuple(forms)


_CONTAINERS = (list, tuple, dict)


def _containers_in(value: Any) -> Any:
    """Tell lists from tuples, and what keys there are: of what is empty, no leaf tells."""
    if isinstance(value, dict):
        return type(value), tuple([(repr(key), _containers_in(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return type(value), tuple([_containers_in(item) for item in value if isinstance(item, _CONTAINERS)])
    return None


def without_values(form: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give the form of a call, with magnitudes for its floats."""
    return tuple(
        (path, (float, magnitude(value[1])))
        if type(value) is tuple and len(value) == 2 and value[0] is float
        else (path, value)
        for path, value in form
    )


def sizes_of(call: Call, local_args: LocalArgs) -> tuple[Any, ...]:
    """Sizes of a call's tensors, but for the number of rows; of graphs, how large they are together."""
    if local_args.graphs is not None:
        return local_args.graphs.magnitudes
    pairs = zip(call.leaves, local_args.leaves, strict=True)
    return tuple([_sizes(leaf, local) for (_, leaf), (_, local) in pairs if isinstance(leaf, Tensor)])


def _form(leaf: Any, local: Any, guards: Guards) -> Any:
    if isinstance(leaf, Tensor):
        # Of a batch, its rows are asked: they answer without a detour. A state is plain in its first call alone.
        at = leaf._layout.dim if isinstance(leaf, BatchTensor) else _cut_at(leaf, local)
        return at, local.dim(), local.dtype, local.requires_grad and torch.is_grad_enabled()
    return type(leaf), leaf if type(leaf) in PLAIN else guards.of_argument(leaf)


def _cut_at(leaf: Tensor, local: Tensor) -> int:
    return next((at for at, (whole, part) in enumerate(zip(leaf.shape, local.shape, strict=True)) if whole != part), -1)


def _sizes(leaf: Tensor, local: Tensor) -> tuple[int, ...]:
    if isinstance(leaf, BatchTensor):
        at = leaf._layout.dim
        return (*local.shape[:at], -1, *local.shape[at + 1 :])
    return tuple(size if size == rows else -1 for size, rows in zip(leaf.shape, local.shape, strict=True))
