"""One line turns a single-process PyTorch script into N processes that print, save and learn the same.

import ddp_patch; ddp_patch.enable()
"""

from typing import TYPE_CHECKING, Any

from .api import (
    disable,
    enable,
    is_enabled,
    is_main,
    per_rank,
    rank,
    report,
    world_size,
)
from .data import deal, read_once, shard_batch, whole
from .errors import (
    BatchError,
    DdpPatchError,
    GradientError,
    LaunchError,
    LockstepError,
    OptionError,
    OrderError,
    PatchError,
    TrustError,
)
from .extending import rank_zero, register_reduction, register_rowwise, register_tracker
from .options import Options
from .values import gather, mean, sum
from .version import __version__

if TYPE_CHECKING:
    from .batch.tensor import BatchTensor
    from .diagnosis.report import Report
    from .remote.launching import launch

__all__ = [
    "BatchError",
    "BatchTensor",
    "DdpPatchError",
    "GradientError",
    "LaunchError",
    "LockstepError",
    "OptionError",
    "Options",
    "OrderError",
    "PatchError",
    "Report",
    "TrustError",
    "__version__",
    "deal",
    "disable",
    "enable",
    "gather",
    "is_enabled",
    "is_main",
    "launch",
    "mean",
    "per_rank",
    "rank",
    "rank_zero",
    "read_once",
    "register_reduction",
    "register_rowwise",
    "register_tracker",
    "report",
    "shard_batch",
    "sum",
    "whole",
    "world_size",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for."""
    if name == "BatchTensor":
        from .batch.tensor import BatchTensor  # noqa: PLC0415

        return BatchTensor
    if name == "Report":
        from .diagnosis.report import Report  # noqa: PLC0415

        return Report
    if name == "launch":
        from .remote.launching import launch  # noqa: PLC0415

        return launch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
