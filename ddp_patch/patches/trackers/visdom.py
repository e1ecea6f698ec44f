"""visdom: rank 0 is connected to the server; all ranks plot, and get the names of the windows."""

from __future__ import annotations

from collections.abc import Callable

import wrapt

from ...effects.ownership import Ownership
from ...effects.shared import SharedObjects
from ...effects.turns import Turns
from ...patcher import Patch


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take visdom over as soon as the script imports it.

    Args:
        turns: of the ranks.
        owners: tells who is calling.
        apply: applies patches, unless the session has ended.
    """
    shared = SharedObjects(turns, owners)
    rows = [Patch("visdom", "Visdom", shared.sharing("visdom.Visdom"), "rank 0's; all get what its methods return")]
    wrapt.register_post_import_hook(lambda module: apply(rows), "visdom")
