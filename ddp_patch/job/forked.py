"""A child that the script forks is no rank: it leaves the job to its parent, whose connections it has got."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from typing import TYPE_CHECKING

from ..state import State

if TYPE_CHECKING:
    from .job import Job

_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
