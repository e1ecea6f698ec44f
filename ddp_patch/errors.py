"""The exceptions that ddp_patch raises.

DdpPatchError
├── OptionError            an option or its DDP_PATCH_* variable is wrong (also a ValueError)
├── LaunchError            the job cannot be started or joined as it was asked for
├── OrderError             enable() or disable() came at a moment when it can no longer be exact
├── PatchError             a patched name is missing, or somebody else replaced it
├── GradientError          gradients of the local view cannot be those of all ranks, or kept ones would be overwritten
├── BatchError             a batch cannot be followed: ambiguous, mixed, or used below torch functions
├── LockstepError          the ranks do not see the same thing
└── TrustError             what came from another process is not known to be one of the ranks'
"""

from __future__ import annotations


class DdpPatchError(RuntimeError):
    """Base of everything this package raises on purpose."""


class OptionError(DdpPatchError, ValueError):
    """An option or its environment variable has a value that cannot be used."""


class LaunchError(DdpPatchError):
    """The processes of this job were not started in a way that can be joined."""


class OrderError(DdpPatchError):
    """A call came too early or too late to keep the script's numbers."""


class PatchError(DdpPatchError):
    """A name that has to be patched is missing or was replaced by somebody else."""


class GradientError(DdpPatchError):
    """A parameter got no gradient on one rank, unlike what DDP was told; or DDP would overwrite one that is kept."""


class BatchError(DdpPatchError):
    """The batch dimension of a tensor cannot be told, or a batch went where it cannot be followed."""


class LockstepError(DdpPatchError):
    """The ranks differ in something that has to be the same on all of them."""


class TrustError(DdpPatchError):
    """What came is not known to be from a rank of this job, or a rank could not show that it is its own."""
