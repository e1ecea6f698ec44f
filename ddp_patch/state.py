"""Whether a session runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis.report import Report
    from .job.job import Job
    from .options import Options
    from .session import Session


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return os.sep


class State:
    """The one place that knows whether a session is running."""

    options: Options | None = None  # of the running session; None when disabled
    session: Session | None = None  # None on a single process
    last_report: Report | None = None
    joined: Job | None = None  # kept over disable(): the ranks stay joined
    by_command = False  # ``python -m ddp_patch`` enabled it, and the script has not said what it wants
    script: str | None = None  # that ``python -m ddp_patch`` is about to run
    folder = _folder()  # of this process when the package was imported, often before the script left it
    search = tuple(sys.path)  # and where it looked for modules
