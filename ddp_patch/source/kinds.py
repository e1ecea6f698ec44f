"""What kinds of things a training script handles, and which constructors make them."""

from __future__ import annotations

import enum
import re


class Kind(enum.Enum):
    """What a value is. An expression may have several: a criterion is a module too."""

    MODULE = enum.auto()  # a torch.nn.Module
    DATA_PARALLEL = enum.auto()  # nn.DataParallel of one
    DDP = enum.auto()  # DistributedDataParallel of one
    LOSS = enum.auto()  # a criterion
    OPTIMIZER = enum.auto()
    SCHEDULER = enum.auto()
    SCALER = enum.auto()
    LOADER = enum.auto()
    LOADER_ITERATOR = enum.auto()  # iter(loader)
    SAMPLER = enum.auto()
    DISTRIBUTED_SAMPLER = enum.auto()
    DATASET = enum.auto()
    DEVICE = enum.auto()
    TRACKER = enum.auto()  # SummaryWriter, wandb.init(), ...
    ACCELERATOR = enum.auto()
    STATE_DICT = enum.auto()
    CHECKPOINT = enum.auto()  # what torch.load gave
    RANK = enum.auto()  # a number that differs between processes
    WORLD_SIZE = enum.auto()
    BATCH = enum.auto()  # what a loader yields
    OUTPUT = enum.auto()  # what a module made of it
    LOSS_VALUE = enum.auto()  # what a criterion made of it
    LOCAL = enum.auto()  # worked out from a batch: under DDP, of one rank's rows
    REDUCED = enum.auto()  # went through all_reduce, all_gather or a function named like them


OF_ROWS = frozenset({Kind.BATCH, Kind.OUTPUT, Kind.LOSS_VALUE, Kind.LOCAL})

_EXACT = {
    "torch.nn.DataParallel": {Kind.MODULE, Kind.DATA_PARALLEL},
    "torch.nn.parallel.DistributedDataParallel": {Kind.MODULE, Kind.DDP},
    "apex.parallel.DistributedDataParallel": {Kind.MODULE, Kind.DDP},
    "torch.utils.data.DataLoader": {Kind.LOADER},
    "torch_geometric.data.DataLoader": {Kind.LOADER},
    "torch_geometric.loader.DataLoader": {Kind.LOADER},
    "torch.utils.data.DistributedSampler": {Kind.SAMPLER, Kind.DISTRIBUTED_SAMPLER},
    "torch.utils.data.random_split": {Kind.DATASET},
    "torch.cuda.amp.GradScaler": {Kind.SCALER},
    "torch.amp.GradScaler": {Kind.SCALER},
    "torch.device": {Kind.DEVICE},
    "accelerate.Accelerator": {Kind.ACCELERATOR},
    "torch.utils.tensorboard.SummaryWriter": {Kind.TRACKER},
    "tensorboardX.SummaryWriter": {Kind.TRACKER},
    "wandb.init": {Kind.TRACKER},
    "torch.load": {Kind.CHECKPOINT},
    "torch.distributed.get_rank": {Kind.RANK},
    "torch.distributed.get_world_size": {Kind.WORLD_SIZE},
    "torch.hub.load": {Kind.MODULE},
    "timm.create_model": {Kind.MODULE},
    "torch.jit.load": {Kind.MODULE},
    "torch.jit.script": {Kind.MODULE},
    "pytorch_metric_learning.samplers.MPerClassSampler": {Kind.SAMPLER},
}
_FAMILIES = (
    (re.compile(r"torch\.nn\.(modules\.\w+\.)?[A-Z]\w*Loss$"), {Kind.LOSS, Kind.MODULE}),
    (re.compile(r"torch\.nn\.(parameter\.)?(Uninitialized)?(Parameter|Buffer)$"), ()),  # tensors
    (re.compile(r"torch\.nn\.(quantized\.|modules\.\w+\.)?[A-Z]\w*$"), {Kind.MODULE}),
    (
        re.compile(r"torch\.nn\.functional\.(\w*loss\w*|cross_entropy|binary_cross_entropy\w*|kl_div)$"),
        {Kind.LOSS_VALUE},
    ),
    (re.compile(r"torch\.optim\.(\w+\.)?lr_scheduler\.[A-Z]\w*$"), {Kind.SCHEDULER}),
    (re.compile(r"torch\.optim\.(?!lr_scheduler)(\w+\.)?[A-Z]\w*$"), {Kind.OPTIMIZER}),
    (
        re.compile(r"(torch_optimizer|apex\.optimizers|timm\.optim|bitsandbytes\.optim|lion_pytorch)\.[A-Z]\w*$"),
        {Kind.OPTIMIZER},
    ),
    (re.compile(r"transformers\.(optimization\.)?get_\w*schedule\w*$"), {Kind.SCHEDULER}),
    (re.compile(r"transformers\.(optimization\.)?(AdamW|Adafactor)$"), {Kind.OPTIMIZER}),
    (re.compile(r"torch\.utils\.data\.\w*Sampler$"), {Kind.SAMPLER}),
    (re.compile(r"torch\.utils\.data\.\w*(Dataset|Subset)$"), {Kind.DATASET}),
    (re.compile(r"torchvision\.datasets\.(\w+\.)?[A-Z]\w*$"), {Kind.DATASET}),
    (re.compile(r"torchvision\.models\.([a-z]\w*\.)*[a-z]\w+$"), {Kind.MODULE}),
    (re.compile(r"transformers\.\w*(Model|For[A-Z])\w*\.from_(pretrained|config)$"), {Kind.MODULE}),
    (re.compile(r"(datasets|torchtext\.datasets)\.load_dataset$"), {Kind.DATASET}),
)
# What a parameter of a function is called when nothing else tells what it is.
_HINTS = (
    (re.compile(r"(.*_)?(data_?)?loaders?$|^(train|val|valid|test|eval)_?dl$", re.I), {Kind.LOADER}),
    (re.compile(r"(.*_)?(optimizer|optim)(_\w+)?$", re.I), {Kind.OPTIMIZER}),
    (re.compile(r"(.*_)?(criterion|loss_fn|loss_func|loss_function|crit)(_\w+)?$", re.I), {Kind.LOSS}),
    (re.compile(r"(.*_)?(lr_)?scheduler$", re.I), {Kind.SCHEDULER}),
    (re.compile(r"(.*_)?dataset$", re.I), {Kind.DATASET}),
    (re.compile(r"^((global_|local_)?rank|local_process_index)$"), {Kind.RANK}),
    (re.compile(r"^(world_size|n_?gpus_total)$"), {Kind.WORLD_SIZE}),
    (re.compile(r"^(tb_)?(summary_)?writer$|^tb_logger$"), {Kind.TRACKER}),
)
# Methods that only one kind of thing has.
_METHODS = {
    "parameters": Kind.MODULE,
    "named_parameters": Kind.MODULE,
    "named_modules": Kind.MODULE,
    "set_epoch": Kind.DISTRIBUTED_SAMPLER,
    "param_groups": Kind.OPTIMIZER,
    "add_scalar": Kind.TRACKER,
    "add_scalars": Kind.TRACKER,
}
# Methods that give back what they are called on.
SAME = frozenset(
    {"to", "cuda", "cpu", "double", "float", "half", "bfloat16", "type", "train", "eval", "requires_grad_"}
    | {"apply", "share_memory", "contiguous", "detach", "clone"}
)
SPAWNS = ("spawn", "start_processes")  # of torch.multiprocessing
_REDUCES = re.compile(
    r"(^|[._])(all_?)?(reduce|gather|broadcast)|reduce_(dict|tensor|mean|sum)|synchronize_between_processes|all_reduce|sync_dist"
)
# Of one process: torch.gather, einops.reduce, functools.reduce, np.add.reduce, x.scatter_reduce(...).
_OF_ONE_PROCESS = re.compile(
    r"(torch\.(?!distributed\.)|(einops|functools|numpy|jax|tensorflow|asyncio|torch_scatter|scipy)\.)"
    r"|(.*[._])?(scatter_reduce_?|index_reduce_?|segment_reduce|broadcast_(to|tensors|shapes|arrays))$"
)
REDUCED_NAMES = re.compile(r"(^|[._])(all_?)?(reduced|synced|gathered)(_|$)")


def made_by(name: str) -> frozenset[Kind]:
    """Tell what a constructor or function makes, by its qualified name."""
    exact = _EXACT.get(name)
    if exact is not None:
        return frozenset(exact)
    return frozenset(next((kinds for pattern, kinds in _FAMILIES if pattern.match(name)), ()))


def named(name: str) -> frozenset[Kind]:
    """Guess what a variable holds by its name alone: for parameters that nothing else tells about."""
    last = name.rpartition(".")[2]
    return frozenset(next((kinds for pattern, kinds in _HINTS if pattern.match(last)), ()))


def reduces(name: str) -> bool:
    """Tell whether a function brings the values of all ranks together, by its qualified name."""
    return _REDUCES.search(name) is not None and _OF_ONE_PROCESS.match(name) is None


def having(attribute: str) -> Kind | None:
    """Tell what has an attribute or method of this name."""
    return _METHODS.get(attribute)
