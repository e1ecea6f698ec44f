"""A child that the script forks is no rank: it leaves the job to its parent, whose connections it has got."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING

from ..state import State

if TYPE_CHECKING:
    from .job import Job

_jobs: weakref.WeakSet[Job] = weakref.WeakSet()
_LET_IN = 0.002  # seconds, in which the forking thread does without Python's lock


def belongs_to_this_process(job: Job) -> None:
    """Keep a job's end out of the children that this process will fork."""
    _jobs.add(job)


def _leave_to_the_parent() -> None:
    for job in list(_jobs):
        atexit.unregister(job.close)
        if State.session is not None:
            State.session.is_running = False
        # Never let go of, since gloo's objects and the store's wait for their threads, which the child has not got
        # (torch 2.13).
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(job))


def children_may_hang(version: tuple[int, ...]) -> bool:
    """Tell whether a child hangs that is forked as another thread is about to take Python's lock for the first time.

    gloo's threads do so when a collective is over, after which loaders start their workers. Mended in CPython 3.10.15
    and 3.11.10 (https://github.com/python/cpython/issues/112275).

    Args:
        version: of Python, as ``sys.version_info``.
    """
    return version < (3, 10, 15) or (3, 11) <= version < (3, 11, 10)


def _let_threads_in() -> None:
    if _jobs:
        time.sleep(_LET_IN)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
    if children_may_hang(sys.version_info[:3]):
        os.register_at_fork(before=_let_threads_in)
