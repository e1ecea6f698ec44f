"""What a call is given, as it was before: a call that fails on batches is made again."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.versions import note_write, version
from ..calling.calls import Call
from ..calling.containers import Containers
from ..calling.rows import Arguments


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
