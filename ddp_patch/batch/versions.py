"""Was a tensor written to since it was last looked at?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def version(tensor: Tensor) -> int:
    """Count of in-place writes; inference tensors keep none, so theirs are those that were noted."""
    if not tensor.is_inference():
        return tensor._version
    return tensor.untyped_storage().__dict__.get("ddp_patch_writes", 0)  # type: ignore[no-any-return]


def node_of(form: Tensor | None) -> int:
    """Number the node that a tensor is of: a write with a part in the graph gives it another one."""
    # Any write gives a view another one.
    base = form if form is None or form._base is None else form._base
    return -1 if base is None or base.grad_fn is None else base.grad_fn._sequence_nr()


def with_its_node(tensor: Tensor) -> Tensor:
    """Give a tensor without the graph that torch refuses to tell of: a view made in no_grad(), its base written to."""
    try:
        tensor.grad_fn  # noqa: B018
    except RuntimeError:
        return tensor.detach()
    return tensor


def note_write(tensor: Tensor) -> None:
    """Count a write to an inference tensor, on the storage that it shares with its views."""
    if tensor.is_inference():
        noted = tensor.untyped_storage().__dict__  # torch keeps the object as long as the memory
        noted["ddp_patch_writes"] = noted.get("ddp_patch_writes", 0) + 1


def is_same(left: Tensor, right: Tensor) -> bool:
    """Tell whether two tensors hold the same, NaN being itself."""
    return torch.equal(left, right) or bool(((left == right) | ((left != left) & (right != right))).all())


def of_no_class(tensor: Tensor) -> Tensor:
    """Give a tensor of a class of the script's, whose methods are its own, as one of torch's; others as they are."""
    kind: Any = type(tensor)
    if kind is Tensor or isinstance(tensor, nn.Parameter) or kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return tensor
    return tensor.as_subclass(Tensor)
