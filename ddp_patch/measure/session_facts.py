"""What ddp_patch's own books say of the steps: what is not split, what gathers, and whose way of distributing it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..job.hosts import accelerator_count

_ITSELF = (
    "The script distributes itself, and ddp_patch stands aside: it is measured as it is. Rows are those of one rank "
    "times the ranks, and what ranks wait for outside of backwards is part of what they compute."
)
_SEVERAL = (
    "One rank had {count} accelerators, as the script chooses them itself, and may use all of them (nn.DataParallel "
    'does). Leave its os.environ["CUDA_VISIBLE_DEVICES"] out while it is measured.'
)


def session_facts(session: Any, ranks: int) -> dict[str, Any]:
    """Give them as JSON may hold them; where ddp_patch does nothing, how many devices the script sees.

    Args:
        session: of ddp_patch, or None where one process runs alone or the script distributes itself.
        ranks: that there are.
    """
    if session is None:
        return {"distributes_itself": True} if ranks > 1 else {"devices": accelerator_count()}
    ledger = session.ledger
    gathers = [
        {"function": function, "line": line, "collectives": its.collectives - its.watched, "bytes": its.bytes}
        for (function, line), its in ledger.gathers.items()
    ]
    return {
        "steps_of_job": ledger.iterations,
        "device": str(session.job.device),
        "replicas": list(ledger.replicas),
        "on_whole": dict(ledger.on_whole),
        "on_batches": dict(ledger.on_batches),
        "loaders": dict(ledger.loaders),
        "gathers": gathers,
    }


def apart(its: Mapping[str, Any], ranks: int) -> str:
    """Say where a run is not what its number of ranks makes one think; nothing where it is.

    Args:
        its: what a session noted of itself.
        ranks: of the run.
    """
    if its.get("distributes_itself"):
        return _ITSELF
    count = its.get("devices", 0)
    return _SEVERAL.format(count=count) if ranks == 1 and count > 1 else ""
