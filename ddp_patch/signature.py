"""The names of a function's arguments, as far as they can be known without a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arguments:
    """What a function takes."""

    positional: tuple[str, ...] = ()  # in their order
    named: frozenset[str] = frozenset()
    has_others: bool = True  # of any number or name, or nothing is known of them


@functools.lru_cache(maxsize=512)
def arguments_of(function: Callable[..., Any]) -> Arguments:
    """Find out what a function takes: of Python, an operator of torch's, or ``apply`` of an ``autograd.Function``."""
    if type(function).__module__ == "torch._ops":
        return _of_operator(function)
    owner, is_without_context = getattr(function, "__self__", None), False
    if isinstance(owner, type) and getattr(function, "__name__", "") == "apply" and hasattr(owner, "forward"):
        classes = [kind for kind in owner.__mro__ if not kind.__module__.startswith("torch.")]
        is_without_context = any("setup_context" in vars(kind) for kind in classes)
        function = owner.forward
    else:
        owner = None
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of C
        return Arguments()
    if owner is not None and not is_without_context:
        del parameters[:1]  # ctx
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    has_others = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    return Arguments(tuple(positional), frozenset([*positional, *keywords]), has_others)


def _of_operator(operator: Any) -> Arguments:
    overloads = (
        [getattr(operator, name) for name in operator.overloads()] if hasattr(operator, "overloads") else [operator]
    )
    names = [[argument.name for argument in overload._schema.arguments] for overload in overloads]  # torch 2.13
    return Arguments(tuple(names[0]), frozenset(name for each in names for name in each), has_others=False)
