"""Experiment trackers: one run, task or window per job, which every rank can use.

The package imports none of them; each is taken over as soon as the script imports it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...effects.ownership import Ownership
from ...effects.turns import Turns
from ...ledger import Ledger
from ...patcher import Patch
from . import clearml, comet, runs, visdom


def patch_when_imported(turns: Turns, owners: Ownership, ledger: Ledger, apply: Callable[[list[Patch]], None]) -> None:
    """Take over the trackers as soon as the script imports them.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        ledger: of the session.
        apply: applies patches, unless the session has ended.
    """
    runs.patch_when_imported(turns, owners, ledger, apply)
    comet.patch_when_imported(turns, owners, apply)
    clearml.patch_when_imported(turns, owners, apply)
    visdom.patch_when_imported(turns, owners, apply)
