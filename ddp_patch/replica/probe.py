"""Try a module once on rows and once on the whole batch, before its rows are computed apart for good.

A loss over all pairs of a batch, a discriminator that compares the batch's samples: split over ranks, they would
silently compute something else. The trial runs a copy in evaluation mode without gradients.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import sys
from typing import Any

import torch
from torch import nn

from ..batch.world import World
from .rows import Entry, compare, detached, whole_arguments


def keeps_rows_apart(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry
) -> tuple[bool, str]:
    """Decide, alike on every rank, whether a module may compute rows apart.

    Returns:
        the decision and its reason, for the report.
    """
    world = World.get()
    whole_args, whole_kwargs = whole_arguments(args, kwargs)  # the one collective before the trial
    ok, scalars, reason = _trial(module, whole_args, whole_kwargs, entry)
    verdicts = world.share([ok, scalars, reason])
    reasons = [verdict[2] for verdict in verdicts if verdict[2]]
    if reasons:
        return all(verdict[0] for verdict in verdicts), reasons[0]
    if not all(verdict[0] for verdict in verdicts):
        return False, "its outputs for some rows depend on the other rows of the batch"
    shares = [count / entry.layout.total for count in entry.layout.counts]
    for index, (_, whole) in enumerate(scalars):
        mean = sum(verdict[1][index][0] * share for verdict, share in zip(verdicts, shares, strict=True))
        if abs(mean - whole) > 1e-3 * max(abs(whole), 1e-6):
            return False, "the scalar it returns is not the mean of its values for the rows"
    return True, "its rows were seen to be independent"


def _trial(
    module: nn.Module, whole_args: tuple[Any, ...], whole_kwargs: dict[str, Any], entry: Entry
) -> tuple[bool, list[tuple[float, float]], str]:
    with _undisturbed():
        try:
            twin = copy.deepcopy(module).eval()
        except Exception as error:  # noqa: BLE001 — deepcopy runs the author's code; the reason is reported
            return True, [], f"not tried on rows first, since it cannot be copied ({type(error).__name__})"
        try:
            before = torch.get_rng_state(), random.getstate()
            whole = twin(*detached(whole_args), **detached(whole_kwargs))
            drew = not torch.equal(before[0], torch.get_rng_state()) or before[1] != random.getstate()
        except Exception as error:  # noqa: BLE001 — the real call will raise it where the author can see it
            return True, [], f"not tried on rows first, since it raised {type(error).__name__} in evaluation mode"
        if drew:
            return True, [], "not tried on rows first, since it draws random numbers in evaluation mode"
        try:
            rows = twin(*detached(entry.args), **detached(entry.kwargs))
        except Exception:  # noqa: BLE001 — fails on rows but not on the whole: it needs the whole
            return False, [], ""
        ok, scalars = compare(rows, whole, entry.layout)
        return ok, scalars, ""


@contextlib.contextmanager
def _undisturbed() -> Any:
    """Leave generators, standard output and the autograd mode as they were."""
    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy and states[2] is not None:
            numpy.random.set_state(states[2])
