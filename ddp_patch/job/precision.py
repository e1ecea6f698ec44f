"""``accelerate launch --mixed_precision bf16 | fp16``: the model computes in it, as ``Accelerator.prepare`` has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import LaunchError
from ..structure import map_leaves

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What the launcher asks model calls to compute in."""

    def __init__(self, device_type: str, launcher: str) -> None:
        """Read the launcher's wish.

        Args:
            device_type: of this rank.
            launcher: which started it. The variable of an outer one, or of a shell, is not for this script.

        Raises:
            LaunchError: for a precision that an unchanged script cannot be given.
        """
        asks = launcher == "accelerate launch"
        wish = (os.environ.get("ACCELERATE_MIXED_PRECISION") if asks else None) or "no"
        if wish not in ("no", *_DTYPES):
            raise LaunchError(
                f"accelerate launch asks for mixed_precision={wish}, whose modules an unchanged script does not have. "
                "Write --mixed_precision bf16 or fp16."
            )
        self.dtype = _DTYPES.get(wish)
        self.when_applied: Callable[[], None] = lambda: None
        self._device_type = device_type

    @property
    def is_requested(self) -> bool:
        """Whether models are to compute in another precision than the script's."""
        return self.dtype is not None

    def applied(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call a model under autocast, and give its outputs back in float32. The script's own autocast goes first."""
        if self.dtype is None or torch.is_autocast_enabled(self._device_type):
            return call(*args)
        self.when_applied()
        with torch.autocast(self._device_type, self.dtype):
            outputs = call(*args)
        return map_leaves(_widened, outputs)


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16) else leaf
