"""Experiment trackers: one run, task or window per job, which every rank can use.

The package imports none of them; each is taken over as soon as the script imports it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...effects.ownership import Ownership
from ...effects.turns import Turns
from ...patcher import Patch
from . import clearml, comet, mlflow, visdom, wandb


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take over the trackers as soon as the script imports them.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        apply: applies patches, unless the session has ended.
    """
    for tracker in (wandb, mlflow, comet, clearml, visdom):
        tracker.patch_when_imported(turns, owners, apply)
