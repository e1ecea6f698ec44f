"""How a session starts, in whatever process ``enable()`` finds itself."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import script_thread
from .options import Options
from .state import State

if TYPE_CHECKING:
    from .session import Session


def start(options: Options, stopped: Callable[[], None], report: Callable[[], str]) -> None:
    """Join the other ranks, or start them in place of this process, or leave one process as it is.

    Args:
        options: of the session.
        stopped: is called when it ends.
        report: gives the report.

    Raises:
        OptionError: when the launcher started another number of ranks than asked for.
        LaunchError: when the job cannot be started or joined as asked.
        OrderError: when it comes too late in the script.
    """
    from .job import launcher, relaunch  # noqa: PLC0415

    launched = launcher.detect(os.environ)
    if launched is None:
        nproc = options.nproc
        if nproc != 1:
            from .job.hosts import accelerator_count  # noqa: PLC0415 — imports torch, only now needed

            nproc = relaunch.worker_count(nproc, accelerator_count(), options.share_devices)
        if nproc > 1:
            relaunch.refuse_old_torch(_torch_version())
            relaunch.start_workers(nproc, options.as_variables())
    else:
        relaunch.refuse_other_count(options.nproc, launched.world_size)
    if launched is None or launched.world_size == 1:
        _report_alone(options, report)
        return
    if State.joined is None:
        if not launched.launcher.keeps:
            relaunch.refuse_other_group()
            relaunch.agree_on_hashes(launched)
        relaunch.refuse_old_torch(_torch_version())  # once: the line before may start this program again
    from . import patches  # noqa: PLC0415
    from .job import freed_memory  # noqa: PLC0415
    from .job.job import Job  # noqa: PLC0415

    freed_memory.keep()
    script_thread.begin(is_kept=launched.launcher.keeps)
    job = State.joined = Job.current or Job(launched, options.timeout, options.share_devices)
    session = _session_class(options)(options, job, stopped)
    patches.begin(session)
    State.session = session


def _session_class(options: Options) -> type[Session]:
    if options.view == "local":
        from .local.session import LocalSession  # noqa: PLC0415

        return LocalSession
    from .session import Session  # noqa: PLC0415

    return Session


def _torch_version() -> str:
    import torch  # noqa: PLC0415 — importing the package loads nothing heavy

    return str(torch.__version__)


def _report_alone(options: Options, report: Callable[[], str]) -> None:
    if options.report:
        atexit.register(lambda: sys.stderr.write(report()))
