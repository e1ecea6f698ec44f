"""What rank-aware scripts say that a script of one process does not: the tables of ``plain``."""

from __future__ import annotations

# Calls that stand alone, and go.
STATEMENTS = {"reduce_meters", "synchronize_between_processes"}
# Those that go where they are of torch.distributed or Accelerate.
COLLECTIVES = {
    *("init_process_group", "destroy_process_group", "barrier", "all_reduce", "broadcast"),
    *("wait_for_everyone", "end_training"),
}
# Calls that give their first argument, or a wrapper of it.
WRAPPERS = {
    *(
        "DistributedDataParallel",
        "DDP",
        "convert_sync_batchnorm",
        "RankSampler",
        "RankStream",
        "RankBatches",
        "rank_share",
    ),
    *("rank_loader", "in_order"),
}
# Keywords that a migration gave.
WRITTEN_KEYWORDS = {"sampler": "rank_rows", "generator": "alike"}
# Calls that give what they get, once there is one process.
IDENTITIES = {
    *(
        "all_sum",
        "all_mean",
        "all_rows",
        "prepare",
        "gather",
        "gather_for_metrics",
        "reduce",
        "unwrap_model",
        "pad_across_processes",
    ),
}
ARGUMENTS = {
    "--local_rank",
    "--local-rank",
    "--world_size",
    "--world-size",
    "--dist-url",
    "--dist_url",
    "--dist-backend",
}
IMPORTED = {
    *(
        "torch.distributed",
        "torch.multiprocessing",
        "accelerate.Accelerator",
        "accelerate",
        "ddp_patch",
        "os",
        "sys",
        "gc",
    ),
    *("torch.nn.parallel.DistributedDataParallel", "torch.utils.data.distributed.DistributedSampler", "logging"),
    *(
        "torch.utils.data.DistributedSampler",
        "accelerate.utils.gather_object",
        "accelerate.utils.broadcast_object_list",
        "torch.utils.data.distributed",
    ),
    "accelerate.utils.DistributedDataParallelKwargs",
}
# Functions that a migration wrote.
WRITTEN_FUNCTIONS = {
    *(
        "all_sum",
        "all_mean",
        "all_rows",
        "all_batches",
        "reduce_meters",
        "RankSampler",
        "RankStream",
        "RankBatches",
        "rank_share",
        "rank_rows",
    ),
    *("rows_of", "batches_of", "alike", "rank_loader", "in_order", "whole_batch", "RowsOfAll", "SilentWriter"),
}
# Lines that a migration wrote.
WRITTEN_LINES = (
    "# One process per GPU; torchrun sets these for each.",
    "# a sum over rows, where DDP averages over ranks",
    "# of rank 0's rows; all rows are counted after the loop",
    "# reduce gradients once per step",
    "# which GPUs is said at the start:",
    "# until it is downloaded",
    "# DDP looks at requires_grad when it is built",
    "# another order in every epoch",
    "# every rank takes all of it",
    "# each rank draws its own, so not",
    "# drawn alike on all ranks, but not",
    "Launch: torchrun --standalone",
    "Launch: accelerate launch",
)
