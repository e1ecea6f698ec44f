"""ClearML: rank 0 has the task; all ranks use it."""

from __future__ import annotations

import sys
from typing import Any

from ...effects.shared import Library
from ...errors import LaunchError
from ...patch import Args, Kwargs, Patch
from ...session import Session
from ..shared import SHARED, shared

CLEARML = Library(frozenset({"Task.connect", "Task.connect_configuration"}), data=("pathlib2",))


def _init(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.rank_zero.in_lockstep() and sys.modules["clearml.config"].running_remotely():
        raise LaunchError(
            "clearml-agent runs this script with arguments from its server, which rank 0 alone would get: they go "
            "into argparse past the other ranks. Start it yourself: `accelerate launch train.py`, with the "
            "arguments on the command line."
        )
    return session.shared(CLEARML).made("Task.init", wrapped, args, kwargs)


_MADE = ("InputModel", "OutputModel", "Dataset")  # classes that take a task
_TASKS = ("create", "get_task", "get_tasks", "current_task", "query_tasks", "clone")

PATCHES = (
    Patch("clearml.task", "Task.init", _init, SHARED, when_imported="clearml"),
    *(
        Patch(module, name, shared(name, CLEARML), SHARED, when_imported="clearml", optional=module == "clearml")
        for module, name in (
            *(("clearml.task", f"Task.{name}") for name in _TASKS),
            ("clearml.logger", "Logger.current_logger"),
            *(("clearml", name) for name in _MADE),
        )
    ),
)
