"""ClearML: rank 0 has the task; all ranks use it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import wrapt

from ...effects.ownership import Ownership
from ...effects.shared import SharedObjects
from ...effects.turns import Turns
from ...errors import LaunchError
from ...patcher import Patch

_GIVING_BACK = frozenset({"Task.connect", "Task.connect_configuration"})
_MADE = ("InputModel", "OutputModel", "Dataset")  # classes that take a task


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take ClearML over as soon as the script imports it.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        apply: applies patches, unless the session has ended.
    """
    shared = SharedObjects(turns, owners, _GIVING_BACK, data=("pathlib2",))
    sharing = shared.sharing("Task.init")

    def init(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if turns.are_taken() and sys.modules["clearml.config"].running_remotely():
            raise LaunchError(
                "clearml-agent runs this script with arguments from its server, which rank 0 alone would get: they go "
                "into argparse past the other ranks. Start it yourself: `accelerate launch train.py`, with the "
                "arguments on the command line."
            )
        return sharing(wrapped, instance, args, kwargs)

    has = "rank 0's; all get what its methods return"

    def rows(module: Any) -> list[Patch]:
        task = ("create", "get_task", "get_tasks", "current_task", "query_tasks", "clone")
        return [
            Patch("clearml.task", "Task.init", init, has),
            *(Patch("clearml.task", f"Task.{name}", shared.sharing(f"Task.{name}"), has) for name in task),
            Patch("clearml.logger", "Logger.current_logger", shared.sharing("Logger.current_logger"), has),
            *(Patch("clearml", name, shared.sharing(name), has) for name in _MADE if hasattr(module, name)),
        ]

    wrapt.register_post_import_hook(lambda module: apply(rows(module)), "clearml")
