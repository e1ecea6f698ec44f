"""What a trial tells of a module: whether the rows of a call came out apart. ``decisions.py`` asks, and decides.

A loss over all pairs of a batch, a discriminator that compares the batch's samples, a BatchNorm of the author's own:
split over ranks, they would silently compute something else. The trial runs two copies without gradients, one on what
stands for the whole batch and one on rows, with norms that track the batch at rest (the real ones see all ranks' rows)
and every random draw replaced by a constant. They share the module's parameters, and no more rows are computed than in
a step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.noted_reductions import Reduction
from ..batch.observation import Observation
from ..calling.call_mode import CallMode
from ..calling.comparison import Dims, close, compare, same_state
from ..calling.graph_data import is_graph, tensors_in
from ..calling.graph_units import AnyRows, GraphRows, are_of_rows
from ..calling.kept_attributes import Place
from ..calling.rows import Arguments
from ..structure import leaves, leaves_below
from .graph_forward import GraphForward, SpoiledForward
from .isolation import keeping_activations
from .trial_run import NotTriedError, Side, TrialRun, is_of_machine, run_both

OWN_DRAWS = "its forward draws from a generator of the script's own, and may branch on what it draws"
_OTHER_ROWS = "its outputs for some rows depend on the other rows of the batch"
WRITES_TO_GRAPHS = "its forward writes to the batch of graphs that it is given. Write to a copy of that"
DRAW_OUTSIDE = "Draw in the script, and pass what was drawn as an argument"


@dataclass(frozen=True)
class SplitDecision:
    """How a module may be computed."""

    mode: CallMode
    reason: str
    dims: Dims = field(default_factory=dict)  # where each output has its rows, if it is computed on rows
    losses: tuple[Reduction, ...] = ()  # that its forward computes
    is_size_dependent: bool = False  # its forward was seen to ask how large the batch is
    tells_batch_sizes: bool = False  # what its forward makes of the batch size on batches is a batch as well
    kept: tuple[Place, ...] = ()  # attributes in which its forward leaves batches, which are among the outputs


def decide_by_trial(
    module: nn.Module,
    whole: Arguments,
    rows: Arguments,
    row_runs: AnyRows,
    seen: Observation | None = None,
    gathers_scalars: bool = False,
    generators: Sequence[Any] = (),
) -> SplitDecision:
    """Try a module, and decide how it may be computed, as far as this rank's rows tell.

    Args:
        module: the module that was called.
        whole: arguments of a call, as batches, or of a few rows on every rank.
        rows: some rows of the same.
        row_runs: which of all rows these are.
        seen: the call, as it was observed on batches; None if it could not be.
        gathers_scalars: 0-dim outputs are per rank by contract, as ``nn.DataParallel`` has them per device.
        generators: of the script's own that it may draw from.

    Raises:
        Exception: what the machine says, such as that it has no more memory.
    """
    arguments = module, whole, rows, seen, generators, row_runs
    try:
        try:
            run = run_both(*arguments)
        except NotTriedError as error:
            if not error.needs_activations:
                raise
            with keeping_activations():
                run = run_both(*arguments)
    except NotTriedError as error:
        is_needed = seen is None and not error.on_rows
        return SplitDecision(CallMode.WHOLE if is_needed else CallMode.BATCHES, str(error))
    with torch.no_grad():  # a checkpoint around the call would take what is compared for what the call saves
        return _judged(run, module, row_runs, seen, gathers_scalars)


def _judged(
    run: TrialRun, module: nn.Module, row_runs: AnyRows, seen: Observation | None, gathers_scalars: bool
) -> SplitDecision:
    # What is computed with the number of rows in Python may be small beside the rest. A function that nothing is known
    # of gets the whole batch, which its kernel may round otherwise.
    is_strict = seen is not None and seen.is_size_dependent and not seen.unknown_functions
    dims: Dims | None = None
    why = _describe_side_effects(run, row_runs)
    if not why:
        dims, why = _locate_rows(module, run, row_runs, gathers_scalars, is_strict)
    if not why and seen is None and _trains_other_tensors(run.rows):
        why = (
            "a tensor that is no parameter of the module is trained with it. Make it a parameter of the module, or "
            "detach it if nothing trains it"
        )
    if not why and not same_state(run.rows.module, run.whole.module):
        why = "its forward keeps values of the batch on the module. Return them instead"
    if why or dims is None:
        return SplitDecision(CallMode.BATCHES, why)
    is_size_dependent = run.rows.trial.is_size_dependent and not gathers_scalars
    return SplitDecision(
        CallMode.ROWS, "its rows were seen to be independent", dims, is_size_dependent=is_size_dependent
    )


def _describe_side_effects(run: TrialRun, row_runs: AnyRows) -> str:
    """Say what a forward does beside computing its outputs that rows would have it do otherwise; nothing if nothing."""
    trial = run.rows.trial
    if isinstance(trial, GraphForward) and trial.wrote:
        return WRITES_TO_GRAPHS
    if isinstance(row_runs, GraphRows) and _gives_back(run.rows):
        return "its forward returns what it is given of the batch of graphs. Use in the script what that has"
    if isinstance(run.whole.trial, SpoiledForward) and (line := run.whole.trial.tied):
        return f"its forward computes something of several graphs at {line}. Do that outside, with what forward returns"
    if run.rows.said != run.whole.said:
        return (
            "its forward writes, prints or logs what it sees of the batch. Do that in the script, with what forward "
            "returns"
        )
    if trial.hooked:
        return (
            f"its forward registers hooks on activations, which see whole batches, at {trial.hooked}. Register them in "
            "the script, on what forward returns"
        )
    if run.drew_beside_torch:
        return f"its forward draws from Python's or NumPy's generator, and may branch on what it draws. {DRAW_OUTSIDE}"
    if run.drew_own:
        return f"{OWN_DRAWS}. {DRAW_OUTSIDE}"
    beside = trial.drew_beside(run.whole.trial)
    if beside:
        return (
            f"its forward draws numbers that are not of the batch, and every rank would have its own, at {beside}. "
            f"{DRAW_OUTSIDE}"
        )
    if not _are_norm_inputs_alike(run.whole.trial.normed, trial.normed, row_runs):
        return (
            "its norms see parts of the batch at a time, and other parts of this rank's rows. Give a norm all rows "
            "where it may have them"
        )
    line = trial.numbers.differing(run.whole.trial.numbers, row_runs)
    if line:
        return (
            f"its forward computes with the number of rows, which each rank has its own of, at {line}. Take a mean "
            "instead of a sum that is divided by it"
        )
    line = trial.numbers.parting(run.whole.trial.numbers) if trial.is_size_dependent else ""
    if line:
        return (
            f"its forward branches on the number of rows, which each rank has its own of, at {line}. Do the same for "
            "any number"
        )
    looked = trial.looked or (run.whole.trial.looked if isinstance(row_runs, GraphRows) else "")
    if looked:
        return (
            f"its forward reads values of tensors, and may branch on them otherwise later, at {looked}. Choose "
            "with torch.where instead"
        )
    return ""


def _locate_rows(
    module: nn.Module, run: TrialRun, row_runs: AnyRows, gathers_scalars: bool, is_strict: bool
) -> tuple[Dims | None, str]:
    """Tell where outputs have their rows, or why they are not those of the whole."""
    try:
        are_alike = all(close(*parts, is_strict) for parts in run.parts)
        dims = compare(run.rows.outputs, run.whole.outputs, row_runs, gathers_scalars, is_strict) if are_alike else None
    except Exception as error:  # a kind of tensor for which torch has not all functions
        if is_of_machine(error):
            raise
        return None, f"its outputs for some rows cannot be compared with those of the batch ({type(error).__name__})"
    if dims is not None:
        return dims, ""
    if isinstance(module, torch.jit.ScriptModule):
        return None, f"scripted code cannot be synchronised between ranks ({_scripted(module)})"
    return None, _OTHER_ROWS


def _gives_back(side: Side) -> bool:
    """Tell whether something that a call is given, or memory of it, is among its outputs."""
    given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(side.inputs) if tensor.numel()}
    returned = [leaf for _, leaf in leaves(side.outputs)]
    return any(is_graph(leaf) for leaf in returned) or any(
        leaf.untyped_storage().data_ptr() in given
        for leaf in returned
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.numel()
    )


def _are_norm_inputs_alike(whole: Sequence[int], rows: Sequence[int], row_runs: AnyRows) -> bool:
    """Tell whether norms, which rest in trials, were each time given something of all rows, and of these rows alike."""
    return len(whole) == len(rows) and all(map(functools.partial(are_of_rows, row_runs), whole, rows))


def _trains_other_tensors(side: Side) -> bool:
    """Tell whether gradients of outputs reach other leaves than a module's parameters and its arguments."""
    trained = {id(leaf) for leaf in (*side.module.parameters(), *(leaf for _, leaf in leaves(side.inputs)))}
    roots = [leaf.grad_fn for _, leaf in leaves(side.outputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return any(id(leaf) not in trained for leaf in leaves_below(roots))


def _scripted(module: nn.Module) -> str:
    names = {str(getattr(layer, "original_name", type(layer).__name__)) for layer in module.modules()}
    mixing = sorted(name for name in names if "Norm" in name)
    return f"its {', '.join(mixing)} would see this rank's rows only" if mixing else "its rows depend on each other"
