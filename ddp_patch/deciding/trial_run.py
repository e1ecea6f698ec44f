"""Two copies of a module run, on what stands for the whole batch and on this rank's rows of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.collectives import Refused
from ..batch.noted_reductions import has_sums, losses_of
from ..batch.observation import Observation
from ..batch.reductions import Reductions, ReductionsOfWhole
from ..batch.row_sums import noticed
from ..batch.world import World
from ..calling.capturing import not_capturing
from ..calling.containers import Containers
from ..calling.graph_data import tensors_by_path
from ..calling.graph_units import AnyRows, GraphRows
from ..calling.kept_attributes import KeptAttributes, Place
from ..calling.rows import Arguments, detached
from ..generators import same_beside_torch, same_states, state_of, states
from ..ledger import raised
from .copies import trial_copy, varied_alike
from .graph_forward import GraphForward, SpoiledForward
from .isolation import isolated
from .tried_forward import TriedForward


@dataclass(frozen=True)
class Side:
    """One copy, and what became of it."""

    module: nn.Module
    inputs: Arguments
    outputs: Any
    trial: TriedForward
    said: list[str]  # written, printed and logged


@dataclass(frozen=True)
class TrialRun:
    """Both of them."""

    whole: Side
    rows: Side
    drew_beside_torch: bool  # from Python's or NumPy's generator
    drew_own: bool  # from one of the script's own
    parts: list[tuple[Tensor, Tensor]]  # of the sums of losses, of these rows and of this rank's on the whole


_WITHOUT_HOOKS = "yet support saved tensor"  # what torch.func.grad and its like say (torch 2.13)


class NotTriedError(Exception):
    """Says why there is nothing to compare."""

    def __init__(self, why: str, on_rows: bool = False) -> None:
        """Note it.

        Args:
            why: in the words of the report.
            on_rows: it ran on the whole, and not on rows.
        """
        super().__init__(why)
        self.on_rows = on_rows
        self.needs_activations = _WITHOUT_HOOKS in why  # its forward differentiates by itself


def run_both(
    module: nn.Module,
    whole: Arguments,
    rows: Arguments,
    seen: Observation | None,
    generators: Sequence[Any],
    row_runs: AnyRows,
) -> TrialRun:
    """Run copies of a module, without gradients and with constants for what is drawn.

    Args:
        module: that was called.
        whole: arguments of a call, as batches, or of a few rows on every rank.
        rows: some rows of the same.
        seen: the call, as it was observed on batches; None if it could not be.
        generators: of the script's own that it may draw from.
        row_runs: which of all rows some are.

    Raises:
        NotTriedError: if one of them does not run.
        Exception: what the machine says, such as that it has no more memory.
    """
    try:
        on_whole, on_rows = trial_copy(module), trial_copy(module)
    except Exception as error:  # deepcopy runs the author's code; the reason is reported
        if is_of_machine(error):
            raise
        raise NotTriedError(
            f"it cannot be tried on rows, since it cannot be copied: {raised(error)}. Give what it holds a "
            "__deepcopy__, or detach the tensors that it keeps"
        ) from None
    whole, rows = varied_alike(whole, rows)
    losses = ReductionsOfWhole()
    Refused.latest = ""
    calls, places = ((), ()) if seen is None else (losses_of(seen), seen.places)
    try:
        given = detached(whole)
        first = _tried_on_whole(module, _batches_among(given, rows), row_runs)
        with isolated(generators) as of_whole, World.get().reducing(losses), first, noticed(has_sums(calls)):
            from_full = _outputs_of(on_whole, places, *given)
        losses.settle()
        _raise_refused()
    except Exception as error:  # the real call will raise it where the author can see it
        if is_of_machine(error):
            raise
        why = str(error) if isinstance(error, Refused) else f"the trial raised {raised(error)}"
        raise NotTriedError(f"it cannot be tried on rows, since {why}") from None
    inputs = detached(rows)
    reductions = None
    if seen is not None:
        reductions = Reductions(calls, seen.layout, World.get().rank, of_whole=losses)
    stood, of_script = states(), [state_of(generator) for generator in generators]
    trial = _tried(module, _batches_among(inputs, whole), row_runs)
    try:
        with isolated(generators) as of_rows, _without_collectives(reductions), trial, noticed(has_sums(calls)):
            from_local = _outputs_of(on_rows, places, *inputs)
            drew = not same_beside_torch(stood, states())
            drew_own = not same_states(of_script, [state_of(generator) for generator in generators])
        _raise_refused()
    except Exception as error:  # it works on the whole and not on rows: it needs the whole
        if is_of_machine(error):
            raise
        why = str(error) if isinstance(error, Refused) else f"on rows it raises {raised(error)}"
        raise NotTriedError(why, on_rows=True) from None
    return TrialRun(
        Side(on_whole, whole, from_full, first, of_whole),
        Side(on_rows, inputs, from_local, trial, of_rows),
        drew,
        drew_own or trial.drew_own,
        [] if reductions is None else reductions.parts,
    )


def _tried_on_whole(module: nn.Module, batch: Iterator[Tensor], row_runs: AnyRows) -> TriedForward:
    if not isinstance(row_runs, GraphRows):
        return TriedForward(module, whole=batch)
    if row_runs.is_spoiled:
        return SpoiledForward(module, batch, row_runs)
    return GraphForward(module, batch, row_runs, of_all=True)


def _tried(module: nn.Module, batch: Iterator[Tensor], row_runs: AnyRows) -> TriedForward:
    if isinstance(row_runs, GraphRows):
        return GraphForward(module, batch, row_runs, of_all=False)
    return TriedForward(module, batch)


def _outputs_of(twin: nn.Module, places: Sequence[Place], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a copy, and give its outputs and what it wrote to containers and places, which then hold what they held."""
    containers, kept = Containers((args, kwargs), (args, kwargs)), KeptAttributes(list(twin.modules()), places)
    flags = [(parameter, parameter.requires_grad) for parameter in twin.parameters()]
    try:
        with not_capturing():
            return kept.with_values(containers.with_writes(twin(*args, **kwargs)))
    finally:
        containers.put_back()
        for parameter, flag in flags:  # which are the module's own; a forward may freeze some
            parameter.requires_grad = flag


def _raise_refused() -> None:
    if Refused.latest:  # and the forward caught it
        raise Refused(Refused.latest)


def _batches_among(some: Arguments, others: Arguments) -> Iterator[Tensor]:
    """Tell apart what is of a batch from what every rank has: of all rows there is more than of some."""
    its = dict(tensors_by_path(others))
    for path, tensor in tensors_by_path(some):
        if path in its and tensor.shape != its[path].shape:
            yield tensor


@contextlib.contextmanager
def _without_collectives(reductions: Reductions | None) -> Iterator[None]:
    world = World.get()
    world.skips_collectives = True
    try:
        with world.reducing(reductions):
            yield
    finally:
        world.skips_collectives = False


def is_of_machine(error: BaseException) -> bool:
    """Tell errors that say nothing about a module: no memory is left, a device failed."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch 2.13, on the host
