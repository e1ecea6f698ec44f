"""``accelerate launch --mixed_precision bf16``: the model computes in bfloat16, as ``Accelerator.prepare`` has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import LaunchError
from ..structure import map_leaves


class Precision:
    """What the launcher asks model calls to compute in."""

    def __init__(self, device_type: str) -> None:
        """Read the launcher's wish.

        Raises:
            LaunchError: for a precision that an unchanged script cannot be given.
        """
        wish = os.environ.get("ACCELERATE_MIXED_PRECISION", "no") or "no"
        if wish not in ("no", "bf16"):
            raise LaunchError(
                f"accelerate launch asks for mixed_precision={wish}, which needs a gradient scaler around the steps "
                "of the script. Write --mixed_precision bf16, or torch.autocast and torch.amp.GradScaler in the script."
            )
        self.asked = wish == "bf16"
        self._device_type = device_type

    def applied(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a model under autocast, and give its outputs back in float32. The script's own autocast goes first."""
        if not self.asked or torch.is_autocast_enabled(self._device_type):
            return call(*args)
        with torch.autocast(self._device_type, torch.bfloat16):
            outputs = call(*args)
        return map_leaves(_widened, outputs)


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16) else leaf
