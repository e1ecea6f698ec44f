"""torch.compile: what it traces is the script's code, not ours. Functions on batches break its graph there instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import wrapt
from torch import nn

from ..compiling.functions import is_taken
from ..patch import Args, Kwargs, Patch
from ..session import Session


def keep_dynamo_out(session: Session) -> list[Callable[[], None]]:
    """Have TorchDynamo skip this package, as soon as somebody imports it (that takes a second or two)."""
    # torch 2.13; torch.compiler.disable on every function of ours would cost microseconds per tensor operation.
    wrapt.register_post_import_hook(_skip_us, "torch._dynamo.trace_rules")
    return []


@functools.cache  # it compiles a pattern anew
def _skip_us(trace_rules: Any) -> None:
    trace_rules.add(__name__.partition(".")[0])


def _compile(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    run = wrapped(*args, **kwargs)
    options = dict(kwargs)
    function = args[0] if args else options.pop("model", None)
    # Without a function it gives a decorator, which comes here again; told to compile nothing, it gives the function.
    if function is None or run is function or not is_taken(function):
        return run
    if isinstance(run, nn.Module):
        traced = function if next(function.parameters(), None) is None else None
        run.forward = session.functions.accepting_batches(run.forward, options, traced)
        return run
    return session.functions.accepting_batches(run, options, function)


_EFFECT = "a function on batches is compiled in parts, or runs as written with its models compiled"
PATCHES = (Patch("torch", "compile", _compile, _EFFECT),)
