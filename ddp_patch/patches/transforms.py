"""torch.func: below its transforms ranks cannot meet, so they are given the whole of every batch.

What they compute is the whole on every rank. Batches that a transformed function reaches by another way, such as a
closure, are gathered where it uses them.
"""

from __future__ import annotations

from typing import Any

from ..batch.below_torch import below_torch
from ..batch.forms import full_tensor
from ..batch.nested import nested
from ..batch.pending_tensor import PendingTensor, wait_for
from ..batch.tensor import BatchTensor
from ..batch.transforms import outside_transforms
from ..calling.swap import as_written
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _entered(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def take(leaf: Any) -> Any:
        if isinstance(leaf, PendingTensor):
            with outside_transforms():
                wait_for(leaf)
        if not isinstance(leaf, BatchTensor):
            return leaf
        if session.world.observation is not None:  # the model may compute rows, and transform these
            raise below_torch("torch.func")
        with session.world.working_on_whole("the arguments of torch.func"):
            return full_tensor(leaf)

    return wrapped(*nested(take, args), **nested(take, kwargs))


def _stacked(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    with as_written(args[0] if args else kwargs["models"]):  # of one class each, since they are trained
        return wrapped(*args, **kwargs)


# Their doors, not they: TorchDynamo looks up the defaults of functions that it inlines, and a wrapper has none for it.
PATCHES = (
    Patch("torch._functorch.eager_transforms", "_wrap_tensor_for_grad", _entered, "takes the whole of a batch"),
    Patch("torch._functorch.vmap", "_create_batched_inputs", _entered, "takes the whole of batches"),
    Patch("torch._functorch.functional_call", "stack_module_state", _stacked, "models are of the script's class"),
)
