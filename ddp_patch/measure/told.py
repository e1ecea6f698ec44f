"""What ddp_patch's own books say of the steps: what is not split, and what gathers whole batches."""

from __future__ import annotations

from typing import Any


def told(session: Any) -> dict[str, Any]:
    """Give them as JSON may hold them; nothing where one process runs alone.

    Args:
        session: of ddp_patch, or None.
    """
    if session is None:
        return {}
    ledger = session.ledger
    gathers = [
        {"function": function, "line": line, "collectives": its.collectives, "bytes": its.bytes}
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
