"""Whether all ranks of a call failed alike, and can leave together what the function had changed."""

from __future__ import annotations

import contextlib

from ..errors import LockstepError
from ..job.job import Job
from ..job.rank_status import is_lost_connection

_WAIT = 3.0  # seconds, in which ranks that fail at the same point do so
_LEFT_WAIT = 600.0  # seconds, in which rank 0 writes what changed
_RAISED, _LEFT = "the function raised", "what it changed is left"


def alike(job: Job, error: BaseException) -> bool:
    """Tell whether every rank met the same error, having come to the same points: no rank is waited for in vain.

    Args:
        job: of the ranks.
        error: that the function raised on this one.
    """
    if isinstance(error, LockstepError) or (isinstance(error, Exception) and is_lost_connection(error)):
        return False
    try:
        job.rank_status.post(_RAISED, f"{job.watch.trail.count} {type(error).__name__}".encode())
        if job.rank_status.wait(f"{_RAISED}/all", _WAIT) is None:
            return False
        return len(set(job.rank_status.posted(_RAISED) or [])) == 1
    except RuntimeError:  # the store is gone, and with it the job
        return False


def wait_until_left(job: Job) -> None:
    """Stay until all ranks have come here: the launcher ends the others as soon as one has failed."""
    with contextlib.suppress(RuntimeError):
        job.rank_status.post(_LEFT, b"")
        job.rank_status.wait(f"{_LEFT}/all", _LEFT_WAIT)
