"""Ties a forward's outputs to the anchor, in whichever form they hold their graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch.forms import to_local
from ..batch.nodes import note_untied
from ..batch.pending_tensor import PendingTensor, passed_on
from ..batch.tensor import BatchTensor
from ..structure import leaves
from .anchors import tie


class Ties:
    """Outputs of one forward, each passed through a node that arms DDP when a backward comes by."""

    def __init__(self, sync: Any, anchor: Tensor, only_parameters: bool, forms: list[Tensor]) -> None:
        """Tie them.

        Args:
            sync: is told when a backward comes by.
            anchor: depends on every parameter.
            only_parameters: nothing that came in as an argument wants a gradient.
            forms: of those that want a gradient.
        """
        held = {id(form): form for form in forms if not form.is_leaf}  # each once, and alive
        with torch._C.DisableTorchFunctionSubclass():  # a loss stays pending
            tied = [tie(sync, anchor, only_parameters, form) for form in held.values()]
            for form, node in zip(held.values(), tied, strict=True):
                if isinstance(form, PendingTensor):
                    passed_on(form, node)
        if tied and anchor.grad_fn is not None and tied[0].grad_fn is not None:
            # Backward visits what was made last first: the anchor goes before the rest of this forward, so that a
            # bucket of gradients leaves as soon as it is full.
            anchor.grad_fn._set_sequence_nr(tied[0].grad_fn._sequence_nr())  # type: ignore[attr-defined]  # torch 2.13
        for form, node in zip(held.values(), tied, strict=True):
            note_untied(node, form)
        self._held = held
        self._tied = dict(zip(held, tied, strict=True))

    def of(self, leaf: Any) -> Any:
        """The tied form of an output."""
        if isinstance(leaf, BatchTensor) and any(id(form) in self._tied for form in leaf.forms):
            return leaf.with_forms(self._tied)
        return self._tied.get(id(leaf), leaf)


def to_be_tied(output: Any, sync: Any) -> list[Tensor]:
    """Give the forms of a forward's outputs that want a gradient.

    Args:
        output: of the forward.
        sync: is told when a backward comes by. What left a forward on rows was tied to it there.
    """
    forms: list[Tensor] = []
    for _, leaf in leaves(output):
        if isinstance(leaf, BatchTensor):
            if leaf._rows is not None:
                to_local(leaf)  # what was written to it through a slice that is gone is a part of its graph
            forms += leaf.forms
        elif isinstance(leaf, Tensor):
            forms.append(leaf)
    return [form for form in forms if form.requires_grad and getattr(form.grad_fn, "sync", None) is not sync]
