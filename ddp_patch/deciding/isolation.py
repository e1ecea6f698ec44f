"""What surrounds the trial of a forward: nothing that it draws, says or saves is noticed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from ..batch.world import World
from ..generators import same_draws

_keeps_activations: ContextVar[bool] = ContextVar("keeps_activations", default=False)


@contextlib.contextmanager
def keeping_activations() -> Iterator[None]:
    """Surround trials of a forward that differentiates by itself."""
    token = _keeps_activations.set(True)
    try:
        yield
    finally:
        _keeps_activations.reset(token)


@contextlib.contextmanager
def isolated(generators: Sequence[Any] = ()) -> Iterator[list[str]]:
    """Leave generators, standard output and errors as they were, and keep no activations.

    Args:
        generators: of the script's own.

    Yields:
        what was said, once it is over.
    """
    world, text = World.get(), io.StringIO()
    before, world.muted_effects = world.muted_effects, []
    said = world.muted_effects
    with same_draws(generators) as draw_again:
        # Gradients are on where they are on in the real call, since forwards ask; nothing is saved for a backward.
        keep_nothing = (
            contextlib.nullcontext()
            if _keeps_activations.get()
            else torch.autograd.graph.saved_tensors_hooks(lambda saved: None, lambda packed: torch.empty(0))
        )
        try:
            # Compiled code computes the same, and would be compiled for nothing.
            eager = torch.compiler.set_stance("force_eager")
            with keep_nothing, eager, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                yield said
        finally:
            world.muted_effects = before
            said += [line for line in text.getvalue().split("\n") if "\r" not in line]  # progress, which tells the time
            draw_again()
