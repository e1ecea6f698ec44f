"""One line turns a single-process PyTorch script into N processes that print, save and learn the same.

import ddp_patch; ddp_patch.enable()
"""

from .api import deal, disable, enable, is_enabled, is_main, per_rank, rank, report, whole, world_size
from .errors import (
    BatchError,
    DdpPatchError,
    LaunchError,
    LockstepError,
    OptionError,
    OrderError,
    PatchError,
)
from .options import Options
from .version import __version__

__all__ = [
    "BatchError",
    "DdpPatchError",
    "LaunchError",
    "LockstepError",
    "OptionError",
    "Options",
    "OrderError",
    "PatchError",
    "__version__",
    "deal",
    "disable",
    "enable",
    "is_enabled",
    "is_main",
    "per_rank",
    "rank",
    "report",
    "whole",
    "world_size",
]
