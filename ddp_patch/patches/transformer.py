"""nn.TransformerEncoder in evaluation: with a padding mask it leaves out what is padded, and says zero there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..batch.forms import full_tensor
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves


def _forward(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    def bind(src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
        return src, src_key_padding_mask

    src, padding = bind(*args, **kwargs)
    trains = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in instance.parameters())
    if instance.training or trains or padding is None or not isinstance(src, BatchTensor):
        return wrapped(*args, **kwargs)
    # Whether it does depends on the whole mask (torch 2.13), and only plain tensors take this path.
    whole = map_leaves(_whole, args), map_leaves(_whole, kwargs)
    with session.replicas.forwards.without_interception():  # its layers are given nested tensors
        result = wrapped(*whole[0], **whole[1])
    return BatchTensor.from_full(result, src._layout)


def _whole(leaf: Any) -> Any:
    return full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf


_EFFECT = "leaves out padding as it does on the whole batch"

PATCHES = (Patch("torch.nn.modules.transformer", "TransformerEncoder.forward", _forward, _EFFECT),)
