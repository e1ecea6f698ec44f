"""Names of the nodes that our functions leave in a graph: those that one process has there.

``print(loss)`` shows ``grad_fn=<NllLossBackward0>`` (``torch._tensor_str``), the name of a class; so a function of ours
has one more class for each name that it stands in for.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Not by attribute, later: the door for the scripts' own functions is guarded.
_apply = torch.autograd.Function.__dict__["apply"]  # a method of a class; of C from torch 2.14
# What that comes to where no transform of torch.func runs (torch 2.13), nine calls of Python's later.
_apply_below: Any = vars(torch._C._FunctionBase)["apply"]
_MEANS: dict[str | None, str] = {"SumBackward0": "MeanBackward0", "SumBackward1": "MeanBackward1"}


def unheard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method of torch's that no function mode hears of: it would be handed on by its name, which is patched."""

    @functools.wraps(method)
    def call(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return method(*args)

    return call


# By identity, each with what tells that the tensor lives: no attributes, which would be saved with it.
_before_hook: dict[int, tuple[Any, Tensor, Any]] = {}
_have_hooks: dict[int, Any] = {}


def note_unhooked(tied: Tensor, output: Tensor) -> None:
    """Note which output of a forward the script has in another form, that brings every backward to all parameters."""
    key, its = id(tied), id(output)
    # Of C alone, in every step: a reference calls ``pop(key, reference)``.
    _before_hook[key] = weakref.ref(tied, functools.partial(_before_hook.pop, key)), output, tied.grad_fn
    _have_hooks[its] = weakref.ref(output, functools.partial(_have_hooks.pop, its))


def unhooked(tensor: Any) -> Any:
    """The tensor that a forward computed: what was computed from it has a path to it, and none to its tied form.

    What comes back to the tied form comes back to it as well. Not once the script has written to that.
    """
    _, output, node = _before_hook.get(id(tensor), (None, tensor, None))
    return output if node is not None and tensor.grad_fn is node else tensor


def has_output_hook(tensor: Any) -> bool:
    """Tell whether a forward computed it, and the script has it in another form."""
    return id(tensor) in _have_hooks


def name_of(tensor: Tensor) -> str | None:
    """Name the node that a tensor was computed by; None where no gradient is wanted."""
    node = tensor.grad_fn
    return None if node is None else type(node).__name__


def named_after(
    tensor: Tensor, function: type[torch.autograd.Function], *, is_mean: bool = False, instead: str | None = None
) -> Callable[..., Any]:
    """Give a function whose node is called like the one that a tensor was computed by.

    Args:
        tensor: what the function will be given.
        function: of ours.
        is_mean: where the tensor is a sum, one process computes a mean.
        instead: what one process's node is called, if something else.
    """
    name = name_of(tensor)
    if name is not None:
        name = instead or (_MEANS.get(name, name) if is_mean else name)
    return named(function, name)


@functools.cache
def named(function: type[torch.autograd.Function], name: str | None) -> Callable[..., Any]:
    """Give a function whose node has a name.

    Args:
        function: computes the same under every name.
        name: of the class of its node, as ``AddmmBackward0``; None if there will be none.
    """
    apply = _apply_below if getattr(function, "is_below_transforms", False) else _apply
    if name is None:
        return apply.__get__(None, function)  # type: ignore[no-any-return]
    again = type(function.__name__, (function,), {"__module__": function.__module__, "__doc__": function.__doc__})
    again._backward_cls.__name__ = name  # type: ignore[attr-defined]  # torch 2.13; the tests tell
    return apply.__get__(None, again)  # type: ignore[no-any-return]
