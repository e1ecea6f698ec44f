"""What a call is given, as it was before: a call that fails on batches is made again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.versions import note_write, version
from ..calling.calls import Call
from ..calling.containers import Containers
from ..calling.rows import Arguments
from ..structure import leaves, leaves_below


class SavedArguments:
    """Containers and tensors among the arguments of a call."""

    def __init__(self, call: Call, arguments: Arguments) -> None:
        """Note what they hold.

        Args:
            call: as the script makes it.
            arguments: its arguments, as the forward gets them.
        """
        self.containers = Containers((call.args, call.kwargs), arguments)
        tensors = [leaf for _, leaf in call.leaves if type(leaf) in (Tensor, BatchTensor)]
        self._tensors = [
            (leaf, version(form), form.detach().clone())
            for leaf in tensors
            if (form := to_local_form(leaf)).layout is torch.strided
        ]

    def put_back(self) -> None:
        """Let them hold that again."""
        self.containers.put_back()
        for leaf, before, saved in self._tensors:
            form = to_local_form(leaf)
            if version(form) != before:
                with torch.inference_mode(form.is_inference()), torch.no_grad():
                    form.copy_(saved)
                note_write(form)


def trained_leaves(values: Any) -> Iterator[Tensor]:
    """Tensors that gradients of these would be accumulated into."""
    for _, leaf in leaves(values):
        if isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor) and leaf.requires_grad:
            yield from [leaf] if leaf.grad_fn is None else leaves_below([leaf.grad_fn])
