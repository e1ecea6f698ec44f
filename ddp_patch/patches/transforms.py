"""torch.func and forward-mode AD: below them ranks cannot meet, so they are given the whole of every batch.

What they compute is the whole on every rank. Batches that a transformed function reaches by another way, such as a
closure, are gathered where it uses them, outside of the transform.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..batch.tensor import BatchTensor
from ..calling.rows import whole_arguments
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import leaves


def _of_function(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return _taking_whole(session, wrapped.__name__, wrapped(*args, **kwargs))


def _of_inputs(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    result = _taking_whole(session, wrapped.__name__, wrapped)(*args, **kwargs)
    if not isinstance(result, tuple):
        return result
    return tuple(_taking_whole(session, wrapped.__name__, each) if callable(each) else each for each in result)


def _taking_whole(session: Session, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def taking_whole(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(leaf, BatchTensor) for _, leaf in leaves((args, kwargs))):
            return function(*args, **kwargs)
        with session.world.working_on_whole(f"the arguments of {name}"):
            args, kwargs = whole_arguments(args, kwargs)
        return function(*args, **kwargs)

    return taking_whole


_WHOLE = "transforms the whole of a batch, on every rank"

PATCHES = (
    Patch("torch.func", "grad", _of_function, _WHOLE),
    Patch("torch.func", "grad_and_value", _of_function, _WHOLE),
    Patch("torch.func", "vmap", _of_function, _WHOLE),
    Patch("torch.func", "hessian", _of_function, _WHOLE),
    Patch("torch.func", "jacfwd", _of_function, _WHOLE),
    Patch("torch.func", "jacrev", _of_function, _WHOLE),
    Patch("torch.func", "jvp", _of_inputs, _WHOLE),
    Patch("torch.func", "linearize", _of_inputs, _WHOLE),
    Patch("torch.func", "vjp", _of_inputs, _WHOLE),
    Patch("torch.autograd.forward_ad", "make_dual", _of_inputs, _WHOLE),
)
