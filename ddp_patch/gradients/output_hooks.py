"""Hooks a forward's outputs, in whichever form they hold their graph.

A backward that comes by one of them touches all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..batch.forms import to_local
from ..batch.nodes import note_unhooked
from ..batch.pending_tensor import PendingTensor, passed_on
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..structure import leaves
from .autograd_functions import hook_output


class OutputHooks:
    """Outputs of one forward, each passed through a node that arms DDP when a backward comes by."""

    def __init__(self, sync: Any, parameter_link: Tensor, inputs: list[Any], forms: list[Tensor]) -> None:
        """Hook them.

        Args:
            sync: is told when a backward comes by.
            parameter_link: what ``touch_parameters`` gave, whose graph leads to every parameter.
            inputs: what came in as arguments.
            forms: of those that want a gradient.
        """
        self._given = {id(leaf) for leaf in inputs}
        only_parameters = not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in inputs)
        given = _memory_of(inputs)
        by_id = {id(form): form for form in forms if not form.is_leaf and given.isdisjoint(_memory_of([form]))}
        shared = _memory_of_several(by_id)
        with torch._C.DisableTorchFunctionSubclass():  # a loss stays pending
            bases = {key: hook_output(sync, parameter_link, only_parameters, base) for key, base in shared.items()}
            hooked = [
                _as_in(bases, form) if _has(bases, form) else hook_output(sync, parameter_link, only_parameters, form)
                for form in by_id.values()
            ]
            for form, node in zip(by_id.values(), hooked, strict=True):
                if isinstance(form, PendingTensor):
                    passed_on(form, node)
        if hooked:
            _visit_first(parameter_link, hooked[0])
        for form, node in zip(by_id.values(), hooked, strict=True):
            _stand_in(node, form)
        self._kept = by_id  # alive
        self._hooked = dict(zip(by_id, hooked, strict=True))

    def of(self, leaf: Any) -> Any:
        """The hooked form of an output."""
        if not isinstance(leaf, BatchTensor):
            return self._hooked.get(id(leaf), leaf)
        if all(id(form) not in self._hooked for form in leaf.forms):
            return leaf
        if id(leaf) in self._given:
            return leaf.with_forms(self._hooked)
        leaf.hold(self._hooked)  # attributes may have it too, and what is written to it
        return leaf


def hook_alone(sync: Any, parameter_link: Tensor, inputs: Sequence[tuple[str, Any]], output: Tensor) -> Tensor:
    """Hook the rows of a forward's only output, which is no leaf: as ``OutputHooks`` does, in fewer steps."""
    only_parameters, base = True, output._base
    with torch._C.DisableTorchFunctionSubclass():
        for _, leaf in inputs:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                if output is leaf or (base is not None and (base is leaf or base is leaf._base)):
                    return output  # in the memory of an argument: what is written to one is written to the other
                only_parameters = False
        node = hook_output(sync, parameter_link, only_parameters, output)
    _visit_first(parameter_link, node)
    _stand_in(node, output)
    return node


def _visit_first(parameter_link: Tensor, node: Tensor) -> None:
    """Have a backward visit all parameters before the rest of a forward, by what hooks its output."""
    if parameter_link.grad_fn is not None and node.grad_fn is not None:
        # Backward visits what was made last first: so a bucket of gradients leaves as soon as it is full.
        sequence_nr = node.grad_fn._sequence_nr()
        parameter_link.grad_fn._set_sequence_nr(sequence_nr)  # type: ignore[attr-defined]  # torch 2.13


def _stand_in(node: Tensor, form: Tensor) -> None:
    if node._base is None:
        note_unhooked(node, form)
    if form.retains_grad:  # once it is written to, what the script has is no longer what the forward retained
        _retain_as_it_is(node)


def _retain_as_it_is(node: Tensor) -> None:
    """Keep the gradient that comes by, as the forward has asked for: it may be of rows, which no other rank has."""
    world = World.get()
    world.rules_at_work += 1
    try:
        node.retain_grad()
    finally:
        world.rules_at_work -= 1


def _memory_of(values: list[Any]) -> set[int]:
    """Tell tensors and what they are views of, by identity. What is written to one of them is written to all."""
    batches = [value for value in values if isinstance(value, BatchTensor) and min(value._layout.counts) > 1]
    others = [value for value in values if not isinstance(value, BatchTensor)]
    forms = [*others, *(form for batch in batches for form in batch.forms)]  # one row may be a view on its rank alone
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [form for form in forms if isinstance(form, Tensor)]
        return {id(its) for form in tensors for its in (form, form._base) if its is not None}


def _memory_of_several(forms: dict[int, Tensor]) -> dict[int, Tensor]:
    """Give the tensors that several outputs are, or are views of: what is written to one of these, all have."""
    if len(forms) < 2:
        return {}
    bases = [_base_of(form) for form in forms.values() if not _is_one_of_several(form)]
    keys = [id(base) for base in bases]
    return {id(base): base for base in bases if keys.count(id(base)) > 1 and not base.is_leaf}


def _has(bases: dict[int, Tensor], form: Tensor) -> bool:
    if id(form) in bases:
        return True
    base = bases.get(id(form._base))
    return base is not None and base.dtype == form.dtype and not _is_one_of_several(form)


def _is_one_of_several(form: Tensor) -> bool:
    """Tell the views that a function gives at once, which torch lets nobody write to: their gradients are joined."""
    return type(form.grad_fn).__name__.startswith(("Split", "Unbind"))


def _as_in(bases: dict[int, Tensor], form: Tensor) -> Tensor:
    """Give an output as it is in the memory of several, which was hooked."""
    if id(form) in bases:
        return bases[id(form)]
    return bases[id(form._base)].as_strided(form.shape, form.stride(), form.storage_offset())


def outputs_to_hook(output: Any, sync: Any) -> list[Tensor]:
    """Give the forms of a forward's outputs that want a gradient.

    Args:
        output: of the forward.
        sync: is told when a backward comes by. What left a forward on rows was hooked there.
    """
    forms: list[Tensor] = []
    for _, leaf in leaves(output):
        if isinstance(leaf, BatchTensor):
            if leaf._rows is not None:
                to_local(leaf)  # what was written to it through a slice that is gone is a part of its graph
            forms += leaf.forms
        elif isinstance(leaf, Tensor):
            forms.append(leaf)
    return [form for form in forms if is_to_hook(form, sync)]


def is_to_hook(form: Tensor, sync: Any) -> bool:
    """Tell whether one form of an output wants a gradient, and has no hook of a replica yet."""
    return form.requires_grad and getattr(_base_of(form).grad_fn, "sync", None) is not sync


def _base_of(form: Tensor) -> Tensor:
    return form if form._base is None else form._base
