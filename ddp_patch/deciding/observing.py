"""A call that runs on batches for the first time, and what is seen of it."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.layout import Layout, RowPlacement
from ..batch.noted_reductions import losses_of, sum_returned
from ..batch.observation import Observation
from ..batch.row_sums import noticed
from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.call_mode import CallMode
from ..calling.calls import Call
from ..calling.comparison import Dims, Place
from ..calling.compiled import is_used, stance
from ..calling.local_arguments import LocalArgs
from ..errors import DdpPatchError, LockstepError
from ..generators import same_draws, same_states, state_of
from ..gradients.graphs import comes_from
from ..structure import leaves, strided
from .arguments import SavedArguments, trained_leaves
from .guards import CHANGES_OUTSIDE, MORE_THAN_WATCHED, Guards
from .state_snapshot import StateSnapshot
from .trial_run import is_of_machine
from .trial_verdict import DRAW_OUTSIDE, OWN_DRAWS, SplitDecision
from .walk import OF_TORCH

OTHER_ROWS = "its outputs have other rows than the batch"
_MOST_NODES = 100_000  # of a graph that are looked at once


def observation(call: Call, layout: Layout, stands: Callable[[Any], StateSnapshot]) -> Observation:
    """What will be seen of a call.

    Args:
        call: that is made.
        layout: of its batch.
        stands: notes what its code may change, and other code of the script's.
    """
    # Arguments are crossed at the module's door, and what becomes of them inside is theirs.
    trained = {id(leaf) for leaf in (*call.module.parameters(), *trained_leaves((call.args, call.kwargs)))}
    seen = Observation(
        lambda tensor, sums: comes_from(tensor, lambda leaf: id(leaf) in trained, _MOST_NODES, sums),
        layout,
        World.get().unruled_calls.agreed,
        lambda code: _as_it_was(call.module, StateSnapshot() if code is None else stands(code)),
    )
    seen.has_frozen = not all(parameter.requires_grad for parameter in call.module.parameters())
    return seen


@contextmanager
def _as_it_was(module: nn.Module, stood: StateSnapshot) -> Iterator[None]:
    kept = _Buffers(module)
    changed = stood.was_written_to()  # by the forward: what it stood at before would be put back
    try:
        yield
    finally:
        kept.put_back()
        if not changed and stood.was_written_to():
            stood.put_back()


class _Buffers:
    """Those of a module and of what is in it, some of which may be batches."""

    def __init__(self, module: nn.Module) -> None:
        buffers = (layer._buffers for layer in module.modules())
        self._layers = [(its, dict(its)) for its in buffers if isinstance(its, dict)]  # TorchScript has others
        self._values = [(buffer, to_local_form(buffer).detach().clone()) for buffer in module.buffers()]

    def put_back(self) -> None:
        for now, before in self._layers:
            if now.keys() != before.keys() or any(now[name] is not before[name] for name in before):
                now.clear()
                now.update(before)
        for buffer, values in self._values:
            local = to_local_form(buffer)
            if local.shape == values.shape and not all(map(torch.equal, strided(values), strided(local))):
                local.data.copy_(values)  # counts no version: a graph may have saved the buffer as it was


class _Attributes:
    """What a layer holds beside what torch keeps for it: the call that fails is made again."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._values = {name: value for name, value in vars(layer).items() if name not in OF_TORCH}
        kinds = (list, dict, set, deque)
        self._contents = [(thing, copy.copy(thing)) for thing in self._values.values() if type(thing) in kinds]

    def put_back(self) -> None:
        for name in [name for name in vars(self._layer) if name not in OF_TORCH and name not in self._values]:
            delattr(self._layer, name)
        for name, value in self._values.items():
            if vars(self._layer).get(name) is not value:
                setattr(self._layer, name, value)
        for thing, content in self._contents:
            thing.clear()
            (thing.extend if isinstance(thing, (list, deque)) else thing.update)(content)


@contextmanager
def untouched(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Surround trials of copies: what calls the module itself is no copy, as a function that stands for its forward.

    Args:
        layers: of the module, itself the first.
    """
    kept: list[_Buffers | _Attributes] = [_Buffers(layers[0]), *map(_Attributes, layers)]
    try:
        yield
    finally:
        for its in kept:
            its.put_back()


@contextmanager
def observed(world: World, seen: Observation) -> Iterator[None]:
    """Surround a call on batches that is observed."""
    world.observation = seen
    try:
        # Compiled code computes the same; a batch cannot go through it.
        with stance("force_eager"), noticed(not is_used()):
            yield
    finally:
        world.observation = None


@contextmanager
def restored_if_it_fails(
    layers: Sequence[nn.Module], seen: Observation, generators: Sequence[Any], saved: SavedArguments
) -> Iterator[None]:
    """Put generators, buffers, attributes and arguments back if a call fails that may do on rows.

    Args:
        layers: of the module that is called, itself the first.
        seen: is told of draws from generators of the script's own.
        generators: these.
        saved: arguments of the module.
    """
    stood = [state_of(generator) for generator in generators]
    kept: list[_Buffers | _Attributes] = [_Buffers(layers[0]), *map(_Attributes, layers)]
    with same_draws(generators) as draw_again:
        try:
            yield
        except Exception as error:
            if not is_of_batches(error, seen):
                raise
            draw_again()
            saved.put_back()
            for its in kept:
                its.put_back()
            raise
    if not same_states(stood, [state_of(generator) for generator in generators]):
        seen.forbid_split(OWN_DRAWS, DRAW_OUTSIDE)


def completed_by(result: Any, local_args: LocalArgs, decision: SplitDecision, seen: Observation) -> SplitDecision:
    """Complete a decision on rows by what a call on batches gave.

    Args:
        result: of the call.
        local_args: of the call.
        decision: of its trial.
        seen: of the call.
    """
    if decision.mode is not CallMode.ROWS:
        return decision
    dims = dims_of(result, local_args, decision.dims)
    if why := sum_returned(seen, result):
        return SplitDecision(CallMode.BATCHES, why)
    if dims is None:
        return SplitDecision(CallMode.BATCHES, OTHER_ROWS)
    return dataclasses.replace(decision, dims=dims, losses=losses_of(seen), kept=seen.places)


def of_few_rows(
    decision: SplitDecision, guards: Guards, noted: StateSnapshot, instead: CallMode, before: StateSnapshot
) -> SplitDecision:
    """Complete the decision of a trial on a few rows.

    Args:
        decision: of the trial.
        guards: of the module.
        noted: what stood before the trial.
        instead: how calls are carried out if not on rows.
        before: what stood before the first of these calls. What the trial leaves as it found it, they all leave alike.
    """
    if noted.was_written_to() or guards.is_truncated:
        before.put_back()
        why = MORE_THAN_WATCHED if guards.is_truncated else CHANGES_OUTSIDE
        return SplitDecision(instead, ". ".join(why))
    if any(where is not None and where.size != 1 for where in decision.dims.values()):
        return SplitDecision(instead, OTHER_ROWS)
    return dataclasses.replace(decision, mode=CallMode.ROWS if decision.mode is CallMode.ROWS else instead)


def dims_of(result: Any, local_args: LocalArgs, seen: Dims) -> Dims | None:
    """Where the outputs of a call on batches have their rows; None if these do not belong to those of the batch.

    Args:
        result: of the call.
        local_args: of the call.
        seen: where the outputs of another call of the form had theirs. A function that got the whole gives no batch.
    """
    dims: dict[str, Place | None] = {}
    for path, leaf in leaves(result):
        if isinstance(leaf, BatchTensor):
            dims[path] = RowPlacement.among(local_args.layout, leaf._layout)
            if dims[path] is None:
                return None
        elif isinstance(leaf, Tensor):
            where = dims[path] = seen.get(path)
            rows = None if where is None else where.size * local_args.layout.total
            if where is not None and leaf.shape[where.dim : where.dim + 1] != (rows,):
                return None
    return dims


_LIBRARIES = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


def is_of_batches(error: Exception, seen: Observation) -> bool:
    """Tell whether an error may come of computing on batches, and not from the script's own code."""
    if isinstance(error, DdpPatchError):
        return not isinstance(error, LockstepError)  # this rank is out of step: trying again would hide it
    if is_of_machine(error):
        return bool(seen.unknown_functions)  # which got the whole batch, and may do with a rank's rows
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    raised_in = "" if last is None else last.tb_frame.f_code.co_filename
    return raised_in.startswith(_LIBRARIES) and isinstance(error, (RuntimeError, TypeError, NotImplementedError))
