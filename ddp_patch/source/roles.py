"""How a script is distributed today, if it is."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable


class Role(enum.Enum):
    """One way of running a training script; a file may show several."""

    DATA_PARALLEL = "nn.DataParallel"
    DDP = "DistributedDataParallel"
    ACCELERATE = "Accelerate"
    LIGHTNING = "Lightning"
    TRAINER = "transformers.Trainer"
    HOROVOD = "Horovod"
    DEEPSPEED = "DeepSpeed"
    IGNITE = "Ignite"
    FSDP = "FSDP"
    TENSOR_PARALLEL = "torch.distributed.tensor"
    RPC = "torch.distributed.rpc"
    DDP_PATCH = "ddp_patch"


_MODULES = {
    "accelerate": Role.ACCELERATE,
    "pytorch_lightning": Role.LIGHTNING,
    "lightning": Role.LIGHTNING,
    "lightning_fabric": Role.LIGHTNING,
    "horovod": Role.HOROVOD,
    "deepspeed": Role.DEEPSPEED,
    "ignite": Role.IGNITE,
    "torch.distributed.rpc": Role.RPC,
    "torch.distributed.tensor": Role.TENSOR_PARALLEL,
    "torch.distributed.pipelining": Role.TENSOR_PARALLEL,
    "torch.distributed.fsdp": Role.FSDP,
    "ddp_patch": Role.DDP_PATCH,
}
_CALLS = {
    "torch.nn.DataParallel": Role.DATA_PARALLEL,
    "torch.nn.parallel.data_parallel": Role.DATA_PARALLEL,
    "torch.nn.parallel.DistributedDataParallel": Role.DDP,
    "apex.parallel.DistributedDataParallel": Role.DDP,
    "torch.distributed.init_process_group": Role.DDP,
    "torch.utils.data.DistributedSampler": Role.DDP,
    "transformers.Trainer": Role.TRAINER,
}
# Names of the functions that people write around torch.distributed, in a file that leaves the setup to another.
_AWARE = re.compile(
    r"(^|\.)(is_main_process|is_dist_avail_and_initialized|get_world_size|init_distributed_mode|reduce_dict|reduce_tensor|"
    r"synchronize_between_processes|all_reduce|all_gather|is_distributed|is_master|is_rank0|set_epoch)$"
)


def roles(modules: Iterable[str], called: Iterable[str], mentioned: Iterable[str]) -> frozenset[Role]:
    """Tell how a file is distributed; nothing for a script of one process.

    Args:
        modules: that it imports, by full name.
        called: functions that it calls, by qualified name.
        mentioned: names in it, dotted, as they stand.
    """
    modules = set(modules)
    found = {_MODULES[name] for name in modules if name in _MODULES}
    found |= {_CALLS[name] for name in called if name in _CALLS}
    if Role.DATA_PARALLEL not in found and "torch.distributed" in modules:
        found.add(Role.DDP)
    if any(_AWARE.search(name) for name in mentioned):
        found.add(Role.DDP)
    return frozenset(found)
