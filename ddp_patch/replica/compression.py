"""The option ``comm_hook``: gradients travel in fewer bytes, by the hooks that torch ships."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .gradients import Compress


def compression(name: str | None, ddp: DistributedDataParallel | None) -> Compress | None:
    """Give the function that sends a bucket in another form; None to send it as it is.

    The numbers are then no longer those of one process: that is what was asked for. Gradients averaged outside DDP's
    pass (see ``gradients``) travel as they are.
    """
    if name is None or ddp is None:
        return None
    group: Any = ddp.process_group
    if name == "powersgd":
        # Vogels et al. 2019; torch's defaults: rank 1, vanilla all-reduce for the first 1,000 iterations.
        state = powerSGD_hook.PowerSGDState(group)
        return lambda bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    hook = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[name]
    return lambda bucket: hook(group, bucket)
