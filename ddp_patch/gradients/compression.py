"""The option ``comm_hook``: gradients travel in fewer bytes, by the hooks that torch ships."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def compress(name: str | None, ddp: DistributedDataParallel, leaves: Callable[[bool], None]) -> None:
    """Have DDP send its buckets in another form; None to send them as they are.

    The numbers are then no longer those of one process: that is what was asked for. Gradients averaged outside DDP's
    pass (see ``gradients``) travel as they are.

    Args:
        name: of the form.
        ddp: that sends them.
        leaves: is told of each, and whether it is the last one.
    """
    state: Any = ddp.process_group
    if name == "powersgd":
        # Vogels et al. 2019; torch's defaults: rank 1, vanilla all-reduce for the first 1,000 iterations.
        state = powerSGD_hook.PowerSGDState(state)
        hook: Any = powerSGD_hook.powerSGD_hook
    else:
        hook = {
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
            None: default_hooks.allreduce_hook,
        }[name]

    def told(_: Any, bucket: Any) -> Any:
        leaves(bucket.is_last())
        return hook(state, bucket)

    # A lambda, since DDP compares the annotations of a hook with its own classes, not with their names.
    ddp.register_comm_hook(None, lambda state, bucket: told(state, bucket))
