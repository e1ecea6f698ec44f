"""Whose code reads a value while a forward is tried."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from ..batch import row_sums
from ..batch.observation import ASSERTING

TORCH = str(Path(torch.__file__).parent) + os.sep  # not torchvision's
# They hand calls on: under torch.set_default_device, and to modes, once TorchDynamo was imported (torch 2.13).
_HANDING_ON = (os.path.join("utils", "_device.py"), "_compile.py", os.path.join("_dynamo", "eval_frame.py"))
_PASSED_OVER = (
    row_sums.__file__,
    torch.overrides.__file__,
    f"{TORCH}_tensor.py",
    *(TORCH + name for name in _HANDING_ON),
)
_HERE = str(Path(__file__).parent) + os.sep
# They read a mask to choose among kernels that compute the same, or raise unless what they are given is sound; or how
# many batches there were, with momentum=None.
KERNELS = (
    nn.modules.transformer.__file__,
    nn.modules.batchnorm.__file__,
    ASSERTING,
    *(os.sep + os.path.join("transformers", name) for name in ("masking_utils.py", "modeling_attn_mask_utils.py")),
)
CACHES = os.sep + os.path.join("transformers", "cache_utils.py")  # asks whether there is anything in one


def reader() -> str:
    """Give the file whose code reads: neither one of these nor one that hands calls on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename in _PASSED_OVER or frame.f_code.co_filename.startswith(_HERE)
    ):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename
