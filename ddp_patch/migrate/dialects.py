"""What the same thing is called in plain DDP and with Accelerate."""

from __future__ import annotations

from dataclasses import dataclass

_SAMPLER = "from torch.utils.data.distributed import DistributedSampler"


@dataclass(frozen=True)
class Dialect:
    """Words and lines of one way to run on several processes."""

    name: str
    rank: str
    world: str
    master: str
    imports: tuple[str, ...]
    header: tuple[str, ...]  # at the top of the module
    start: tuple[str, ...]  # before anything is built
    end: tuple[str, ...]  # drops the wrappers first: torch 2.13 with gloo may abort at exit while one is alive
    barrier: str
    add: str  # reduces the tensor ``total`` over the ranks
    share: str  # gives the list ``given`` of the first rank to all
    collect: str  # fills ``parts`` with every rank's tensor ``rows``
    gather: str  # fills ``parts`` with every rank's ``lists``
    device: str
    home: str  # where files are loaded to
    launch: str


DDP = Dialect(
    name="ddp",
    rank="ddp_rank",
    world="ddp_world_size",
    master="master_process",
    imports=(
        "import gc",
        "import os",
        "import sys",
        "import torch",
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel",
        _SAMPLER,
    ),
    header=(
        "# One process per GPU; torchrun sets these for each.",
        'ddp_rank = int(os.environ["RANK"])',
        'ddp_local_rank = int(os.environ["LOCAL_RANK"])  # on this host: the number of its GPU',
        'ddp_world_size = int(os.environ["WORLD_SIZE"])',
        'ddp_device = torch.device("cuda", ddp_local_rank) if torch.cuda.is_available() else torch.device("cpu")',
        "master_process = ddp_rank == 0  # this one prints, logs and saves",
    ),
    start=(
        'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
        "if torch.cuda.is_available():",
        '    torch.cuda.set_device(ddp_device)  # from here on "cuda" is this one',
    ),
    end=("gc.collect()  # the wrappers go before the process group", "dist.destroy_process_group()"),
    barrier="dist.barrier()  # no rank reads it before it is there",
    add="dist.all_reduce(total)",
    share="dist.broadcast_object_list(given)",
    collect="dist.all_gather(parts, rows.contiguous())",
    gather="dist.all_gather_object(parts, lists)",
    device="ddp_device",
    home="ddp_device",
    launch="torchrun --standalone --nproc-per-node gpu {script}",
)

ACCELERATE = Dialect(
    name="accelerate",
    rank="accelerator.process_index",
    world="accelerator.num_processes",
    master="accelerator.is_main_process",
    imports=("import os", "import sys", "import torch", "from accelerate import Accelerator", _SAMPLER),
    header=(),
    start=("accelerator = Accelerator(cpu=not torch.cuda.is_available())",),
    end=("accelerator.free_memory()", "accelerator.end_training()"),
    barrier="accelerator.wait_for_everyone()  # no process reads it before it is there",
    add='total = accelerator.reduce(total, "sum")',
    share="broadcast_object_list(given)",
    collect="parts = accelerator.gather(rows.contiguous()).chunk(accelerator.num_processes)",
    gather="parts = gather_object([lists])",
    device="accelerator.device",
    home="accelerator.device.type",  # on CPUs the device is "cpu:1", which torch.load does not know
    launch="accelerate launch {script}",
)

DIALECTS = {"ddp": DDP, "accelerate": ACCELERATE}
