"""Try a module once, before its rows are computed apart for good.

A loss over all pairs of a batch, a discriminator that compares the batch's samples, a BatchNorm of the author's own:
split over ranks, they would silently compute something else. The trial runs two copies without gradients, one on what
stands for the whole batch and one on rows, with norms that track the batch at rest (the real ones see all ranks' rows)
and every random draw replaced by a constant. They share the module's parameters, and no more rows are computed than in
a step.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.collectives import Refused
from ..batch.layout import RowRuns
from ..batch.observation import Observation
from ..batch.reductions import Reduction, Reductions
from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.comparison import Dims, compare, same_state
from ..calling.containers import Containers
from ..calling.rows import Arguments, detached
from ..generators import same_beside_torch, same_draws, same_states, state_of, states
from ..ledger import raised
from ..structure import leaves, leaves_below
from .copies import NormInput, trial_copy, varied_alike
from .split_trial import SplitTrial

OWN_DRAWS = "its forward draws from a generator of the script's own, and may branch on what it draws"
DRAW_OUTSIDE = "Draw in the script, and pass what was drawn as an argument"


@dataclass(frozen=True)
class SplitDecision:
    """How a module may be computed."""

    how: CallMode
    reason: str
    dims: Dims = field(default_factory=dict)  # where each output has its rows, if it is computed on rows
    losses: tuple[Reduction, ...] = ()  # that its forward computes
    is_sized: bool = False  # its forward was seen to ask how large the batch is


def decide(
    module: nn.Module,
    whole: Arguments,
    rows: Arguments,
    which: RowRuns,
    seen: Observation | None = None,
    vector: bool = False,
    generators: Sequence[Any] = (),
) -> SplitDecision:
    """Decide how a module may be computed, as far as this rank's rows tell.

    Args:
        module: the module that was called.
        whole: arguments of a call, as batches, or of a few rows on every rank.
        rows: some rows of the same.
        which: of all rows.
        seen: the call, as it was observed on batches; None if it could not be.
        vector: 0-dim outputs are per rank by contract, as ``nn.DataParallel`` has them per device.
        generators: of the script's own that it may draw from.

    Raises:
        Exception: what the machine says, such as that it has no more memory.
    """
    otherwise = CallMode.WHOLE if seen is None else CallMode.BATCHES
    reductions = None if seen is None else Reductions(seen.reductions, seen.layout, World.get().rank)
    normed_of_all: list[NormInput] = []
    normed: list[NormInput] = []
    try:
        on_whole, on_rows = trial_copy(module, normed_of_all), trial_copy(module, normed)
    except Exception as error:  # deepcopy runs the author's code; the reason is reported
        if is_of_machine(error):
            raise
        why = f"it cannot be tried on rows, since it cannot be copied ({type(error).__name__})"
        return SplitDecision(
            otherwise, f"{why}. Give what it holds a __deepcopy__, or detach the tensors that it keeps"
        )
    whole, rows = varied_alike(whole, rows)
    first = SplitTrial(module)
    try:
        with undisturbed(generators) as of_whole, first:
            from_full = _given_by(on_whole, *detached(whole))
    except Exception as error:  # the real call will raise it where the author can see it
        if is_of_machine(error):
            raise
        why = str(error) if isinstance(error, Refused) else f"the trial raised {raised(error)}"
        return SplitDecision(otherwise, f"it cannot be tried on rows, since {why}")
    args, kwargs = detached(rows)
    stood, own = states(), [state_of(generator) for generator in generators]
    trial = SplitTrial(module, _batches_among((args, kwargs), whole))
    try:
        with undisturbed(generators) as of_rows, _alone(reductions), trial:
            from_local = _given_by(on_rows, args, kwargs)
            drew = not same_beside_torch(stood, states())
            drew_own = not same_states(own, [state_of(generator) for generator in generators])
    except Exception as error:  # it works on the whole and not on rows: it needs the whole
        if is_of_machine(error):
            raise
        why = str(error) if isinstance(error, Refused) else f"on rows it raises {raised(error)}"
        return SplitDecision(CallMode.BATCHES, why)
    if of_rows != of_whole:
        why = "its forward writes, prints or logs what it sees of the batch"
        return SplitDecision(CallMode.BATCHES, f"{why}. Do that in the script, with what forward returns")
    if trial.hooked:
        why = f"its forward registers hooks on activations, which see whole batches, at {trial.hooked}"
        return SplitDecision(CallMode.BATCHES, f"{why}. Register them in the script, on what forward returns")
    if drew:
        why = "its forward draws from Python's or NumPy's generator, and may branch on what it draws"
        return SplitDecision(CallMode.BATCHES, f"{why}. {DRAW_OUTSIDE}")
    if drew_own or trial.drew_own:
        return SplitDecision(CallMode.BATCHES, f"{OWN_DRAWS}. {DRAW_OUTSIDE}")
    beside = trial.drew_beside(first)
    if beside:
        why = f"its forward draws numbers that are not of the batch, and every rank would have its own, at {beside}"
        return SplitDecision(CallMode.BATCHES, f"{why}. {DRAW_OUTSIDE}")
    if not _are_of_all(normed_of_all, normed, which):
        why = "its norms see parts of the batch at a time, and other parts of this rank's rows"
        return SplitDecision(CallMode.BATCHES, f"{why}. Give a norm all rows where it may have them")
    if trial.looked:
        why = f"its forward reads values of tensors, and may branch on them otherwise later, at {trial.looked}"
        return SplitDecision(CallMode.BATCHES, f"{why}. Choose with torch.where instead")
    with torch.no_grad():
        # What is computed with the number of rows in Python may be small beside the rest. A function that nothing is
        # known of gets the whole batch, which its kernel may round otherwise.
        closely = seen is not None and seen.is_sized and not seen.unknown
        try:
            dims = compare(from_local, from_full, which, vector, closely)
        except Exception as error:  # a kind of tensor for which torch has not all functions
            if is_of_machine(error):
                raise
            why = f"its outputs for some rows cannot be compared with those of the batch ({type(error).__name__})"
            return SplitDecision(CallMode.BATCHES, why)
    if dims is None and isinstance(module, torch.jit.ScriptModule):
        return SplitDecision(
            CallMode.BATCHES, f"scripted code cannot be synchronised between ranks ({_scripted(module)})"
        )
    if dims is None:
        return SplitDecision(CallMode.BATCHES, "its outputs for some rows depend on the other rows of the batch")
    if seen is None and _trains_others(from_local, on_rows, args, kwargs):
        why = "a tensor that is no parameter of the module is trained with it"
        return SplitDecision(CallMode.BATCHES, f"{why}. Make it a parameter of the module")
    if not same_state(on_rows, on_whole):
        return SplitDecision(
            CallMode.BATCHES, "its forward keeps values of the batch on the module. Return them instead"
        )
    return SplitDecision(
        CallMode.ROWS, "its rows were seen to be independent", dims, is_sized=trial.is_sized and not vector
    )


def _are_of_all(whole: Sequence[NormInput], rows: Sequence[NormInput], which: RowRuns) -> bool:
    """Tell whether norms, which rest in trials, were each time given something of all rows, and of these rows alike."""
    return len(whole) == len(rows) and all(
        one.layer == other.layer
        and one.entries % which.total == 0
        and one.entries * which.count == other.entries * which.total
        for one, other in zip(whole, rows, strict=True)
    )


def _given_by(twin: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a copy, and give its outputs and what it wrote to containers, which hold afterwards what they held."""
    containers = Containers((args, kwargs), (args, kwargs))
    try:
        return containers.told(twin(*args, **kwargs))
    finally:
        containers.put_back()


def _trains_others(outputs: Any, module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Tell whether gradients of outputs reach other leaves than a module's parameters and its arguments."""
    own = {id(leaf) for leaf in (*module.parameters(), *(leaf for _, leaf in leaves((args, kwargs))))}
    roots = [leaf.grad_fn for _, leaf in leaves(outputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return any(id(leaf) not in own for leaf in leaves_below(roots))


def _batches_among(rows: Arguments, whole: Arguments) -> Iterator[Tensor]:
    """Tell apart what the rows of a batch are from what every rank has: the whole has more of them."""
    all_rows = dict(leaves(whole))
    for path, leaf in leaves(rows):
        if isinstance(leaf, Tensor) and leaf.shape != getattr(all_rows.get(path), "shape", leaf.shape):
            yield leaf


@contextlib.contextmanager
def _alone(reductions: Reductions | None) -> Iterator[None]:
    world = World.get()
    world.alone = True
    try:
        with world.reducing(reductions):
            yield
    finally:
        world.alone = False


def is_of_machine(error: BaseException) -> bool:
    """Tell errors that say nothing about a module: no memory is left, a device failed."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch 2.13, on the host


def _scripted(module: nn.Module) -> str:
    names = {str(getattr(layer, "original_name", type(layer).__name__)) for layer in module.modules()}
    mixing = sorted(name for name in names if "Norm" in name)
    return f"its {', '.join(mixing)} would see this rank's rows only" if mixing else "its rows depend on each other"


@contextlib.contextmanager
def undisturbed(generators: Sequence[Any] = ()) -> Iterator[list[str]]:
    """Leave generators, standard output and errors as they were, and keep no activations.

    Args:
        generators: of the script's own.

    Yields:
        what was said, once it is over.
    """
    world, text = World.get(), io.StringIO()
    before, world.said = world.said, []
    said = world.said
    with same_draws(generators) as draw_again:
        # Gradients are on where they are on in the real call, since forwards ask; nothing is saved for a backward.
        keep_nothing = torch.autograd.graph.saved_tensors_hooks(lambda saved: None, lambda packed: torch.empty(0))
        try:
            # Compiled code computes the same, and would be compiled for nothing.
            eager = torch.compiler.set_stance("force_eager")
            with keep_nothing, eager, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
                yield said
        finally:
            world.said = before
            said += [line for line in text.getvalue().split("\n") if "\r" not in line]  # progress, which tells the time
            draw_again()
