"""nn.TransformerEncoder in evaluation: with a padding mask it leaves out what is padded, and says zero there.

It does so if every text of the batch is padded at its end, which the ranks tell each other of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch.crossings import local_rows
from ..batch.forms import full_tensor, to_local
from ..batch.row_sums import unnoticed
from ..batch.rules.elementwise import to_local_form
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves

_REMEDY = "Write nn.TransformerEncoder(..., enable_nested_tensor=False)"


def _forward(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
        return src, mask, src_key_padding_mask

    src, mask, padding = bind(*args, **kwargs)
    if not (isinstance(src, Tensor) and isinstance(padding, Tensor) and _may_leave_out(instance, src, mask)):
        return wrapped(*args, **kwargs)
    if not isinstance(src, BatchTensor):
        return unnoticed(src, wrapped, args, kwargs)
    if not _are_padded_at_end(session.world, instance, src, padding):
        return wrapped(*args, **kwargs)
    change = _cut_as(src) if _is_as_written(instance) else _whole
    args, kwargs = map_leaves(change, args), map_leaves(change, kwargs)
    with session.replicas.forwards.without_interception():  # its layers are given nested tensors
        result = unnoticed(src, wrapped, args, kwargs)
    if change is _whole:
        return BatchTensor.from_full(result, src._layout)
    return BatchTensor.from_local(result, src._layout)


def _may_leave_out(encoder: Any, src: Any, mask: Any) -> bool:
    """Tell whether it would on the whole batch, as far as that does not depend on the padding (torch 2.13)."""
    if not getattr(encoder, "use_nested_tensor", False) or not torch.backends.mha.get_fastpath_enabled():
        return False
    if mask is not None or src.dim() != 3 or torch.is_autocast_enabled() or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and (src.requires_grad or any(p.requires_grad for p in encoder.parameters())):
        return False
    return not encoder.layers[0].training and (not isinstance(src, BatchTensor) or src._layout.dim == 0)


def _are_padded_at_end(world: World, encoder: nn.TransformerEncoder, src: BatchTensor, padding: Tensor) -> bool:
    if not getattr(encoder, "mask_check", True):
        return True  # says the author
    if world.observation is not None:
        why = "nn.TransformerEncoder leaves out padding only if every text of the batch is padded at its end"
        world.observation.forbid_split(why, _REMEDY, at_line=True)
    rows, kept = to_local(src), _cut_as(src)(padding).logical_not()
    are_own = not len(rows) or torch._nested_tensor_from_mask_left_aligned(rows, kept)
    return int(world.all_reduce(torch.tensor(int(are_own), device=src.device))) == world.size


def _is_as_written(encoder: nn.TransformerEncoder) -> bool:
    """Tell that all in it is torch's own, and that nobody hears of it."""
    for layer in encoder.layers:
        if type(layer) is not nn.TransformerEncoderLayer or not layer.activation_relu_or_gelu:
            return False
        if not all(type(module).__module__.startswith("torch.nn.") for module in layer.modules()):
            return False
    return not any(module._forward_hooks or module._forward_pre_hooks for module in encoder.modules())


def _cut_as(src: BatchTensor) -> Any:
    def cut(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor) and leaf.shape[:1] == src.shape[:1]:
            return local_rows(leaf, src._layout)
        return to_local_form(leaf)

    return cut


def _whole(leaf: Any) -> Any:
    return full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf


_EFFECT = "leaves out padding on each rank if one process would on the whole batch"

PATCHES = (Patch("torch.nn.modules.transformer", "TransformerEncoder.forward", _forward, _EFFECT),)
