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
                found[index] = each.detach().cpu()  # or unpickling would make the caller use an accelerator
        elif isinstance(each, torch.nn.Module):
            replaced = {
                name: value if value is None else value.detach().cpu()
                for name, value in _held_by(each).items()
                if was[1].get(name) is not value
            }
            if each.training != was[0] or replaced:
                found[index] = each.training, replaced
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
                _write(each, value)
            elif isinstance(each, torch.nn.Module):
                each.training, replaced = value
                own = _held_by(each)
                for name, tensor in replaced.items():
                    before = own.get(name)
                    if before is not None and tensor is not None:
                        _write(before, tensor)
                    else:
                        setattr(each, name, tensor)
            elif isinstance(each, torch.Generator):
                each.set_state(value)
            else:
                each.load_state_dict(value)


def _held_by(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Its own buffers and parameters: ``self.center = 0.9 * self.center`` puts another one into its place."""
    return {**module._buffers, **module._parameters}


def _write(own: torch.Tensor, value: torch.Tensor) -> None:
    if own.shape == value.shape and own.dtype == value.dtype:
        own.copy_(value)
    else:
        own.data = value.to(own.device)


def _seen(each: Any) -> Any:
    if isinstance(each, torch.nn.Module):
        return each.training, _held_by(each)
    if not isinstance(each, torch.Tensor):
        return None
    print_ = None
    if each.device.type == "cpu" and each.layout is torch.strided and not each.is_quantized and each.numel():
        # What changes ``.data`` leaves the version as it was.
        print_ = zlib.crc32(each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return each._version, tuple(each.shape), each.dtype, print_
