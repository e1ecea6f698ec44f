"""A script that distributes itself: stand aside, say so once, and leave it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..errors import OrderError
from ..launch.job import Job
from ..ledger import Ledger, script_line
from ..patcher import Patch

logger = logging.getLogger(__name__)


def patches(job: Job, ledger: Ledger, stop: Callable[[], None]) -> list[Patch]:
    """Rows for the doors through which a script becomes distributed by itself.

    Args:
        job: whose process group has to make room.
        ledger: tells whether something was dealt already.
        stop: ends the session.
    """

    def stand_aside(what: str, keeps_group: bool) -> None:
        if ledger.loaders or ledger.replicas:
            raise OrderError(
                f"{script_line()}: {what} was called after batches had been dealt, so ddp_patch cannot stand aside any "
                "more. Leave ddp_patch.enable() out of a script that distributes itself."
            )
        stop()
        job.release(keeps_group)
        if job.placement.rank == 0:
            logger.warning(
                "%s: the script calls %s, so it distributes itself: ddp_patch stands aside.", script_line(), what
            )

    def row(module: str, target: str, what: str, keeps_group: bool) -> Patch:
        def wrapper(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not job.wrapping:
                stand_aside(what, keeps_group)
            return wrapped(*args, **kwargs)

        also = ("torch.distributed:init_process_group",) if target == "init_process_group" else ()
        return Patch(module, target, wrapper, "ddp_patch stands aside", also)

    return [
        row("torch.distributed.distributed_c10d", "init_process_group", "torch.distributed.init_process_group", False),
        row("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", "DistributedDataParallel", True),
        row("accelerate.accelerator", "Accelerator.__init__", "accelerate.Accelerator", False),
    ]
