"""What a function changed of what it got: noted where it ran, and made where it was called."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def note(held: Sequence[Any]) -> list[Any]:
    """Note how things are before a call."""
    return [_seen(each) for each in held]


def changes(held: Sequence[Any], before: Sequence[Any]) -> dict[int, Any]:
    """Give what is another one since, by position."""
    found: dict[int, Any] = {}
    for index, (each, was) in enumerate(zip(held, before, strict=True)):
        if isinstance(each, torch.Tensor):
            if _seen(each) != was:
                found[index] = each.detach()
        elif isinstance(each, torch.nn.Module):
            if each.training != was:
                found[index] = each.training
        elif isinstance(each, torch.Generator):
            found[index] = each.get_state()
        else:
            found[index] = each.state_dict()
    return found


def make(held: Sequence[Any], changed: Mapping[int, Any]) -> None:
    """Change the caller's own likewise."""
    with torch.no_grad():
        for index, value in changed.items():
            each = held[index]
            if isinstance(each, torch.Tensor):
                if each.shape == value.shape and each.dtype == value.dtype:
                    each.copy_(value)
                else:
                    each.data = value
            elif isinstance(each, torch.nn.Module):
                each.training = value
            elif isinstance(each, torch.Generator):
                each.set_state(value)
            else:
                each.load_state_dict(value)


def _seen(each: Any) -> Any:
    if isinstance(each, torch.nn.Module):
        return each.training
    if not isinstance(each, torch.Tensor):
        return None
    print_ = None
    if each.device.type == "cpu" and each.layout is torch.strided and not each.is_quantized and each.numel():
        # What changes ``.data`` leaves the version as it was.
        print_ = zlib.crc32(each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return each._version, tuple(each.shape), each.dtype, print_
