"""What to write: where a replica does not fit, where gradients shall take fewer bytes, for another batch."""

from __future__ import annotations

FIRST = "python -m ddp_patch migrate train.py --to ddp --write   # first: ddp_patch has a whole replica on every rank"
LINES = {
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint",
        "x = checkpoint(block, x, use_reentrant=False)   # computes it again in the backward: about 1/3 more work",
    ),
    "view": ("ddp_patch.enable(gradient_as_bucket_view=True)   # gradients live in DDP's buckets, not twice",),
    "zero1": (
        FIRST,
        "from torch.distributed.optim import ZeroRedundancyOptimizer",
        "optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.{optimizer}, lr=lr)",
    ),
    "fsdp": (
        FIRST,
        "from torch.distributed.fsdp import fully_shard   # in place of DistributedDataParallel",
        "for block in model.blocks:",
        "    fully_shard(block)",
        "fully_shard(model)",
        "optimizer = torch.optim.{optimizer}(model.parameters(), lr=lr)   # after fully_shard",
    ),
    "tensor": (
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import fully_shard",
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module",
        'mesh = init_device_mesh("cuda", ({hosts}, {devices}), mesh_dim_names=("dp", "tp"))',
        "for block in model.blocks:   # names as your model has them",
        '    parallelize_module(block.mlp, mesh["tp"], {{"up": ColwiseParallel(), "down": RowwiseParallel()}})',
        '    fully_shard(block, mesh=mesh["dp"])',
    ),
}
_CLASSES = {
    "sgd": "SGD",
    "momentum": "SGD",
    "adagrad": "Adagrad",
    "rmsprop": "RMSprop",
    "adam": "Adam",
    "adamw": "AdamW",
    "nadam": "NAdam",
    "radam": "RAdam",
}


def lines(name: str, optimizer: str, hosts: int = 1, devices: int = 1) -> list[str]:
    """Give the lines to write.

    Args:
        name: one of ``LINES``.
        optimizer: one of ``memory.OPTIMIZERS``.
        hosts: of the job.
        devices: of each host.
    """
    fields = {"optimizer": _CLASSES[optimizer], "hosts": hosts, "devices": devices}
    return [line.format(**fields) for line in LINES[name]]


def hook_line(name: str) -> str:
    """Give the line that sends gradients in fewer bytes."""
    return f'ddp_patch.enable(comm_hook="{name}")'


def why(reason: str, within_one_host: bool) -> str:
    """Say what efficiency is lost to, and what would help."""
    wires = "between the devices of a host" if within_one_host else "between hosts"
    return {
        "bandwidth": f"gradients take longer to travel {wires} than the backward hides (bandwidth): fewer bytes "
        "(comm_hook), more rows to a rank, or several backwards for each step (accumulation)",
        "latency": f"many messages follow upon each other {wires} (latency): fewer, larger buckets (bucket_cap_mb), or "
        "more rows to a rank",
        "fixed": "part of a step stays however few rows there are (optimizer, Python, kernels): more rows to a rank",
        "rows": "the batch is too small: ranks have different numbers of rows, or all compute the same; a batch_size "
        "that is a multiple of the ranks, or a larger one",
    }[reason]
