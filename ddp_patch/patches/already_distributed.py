"""A script that can only run distributed: stand aside at its first door, say so once, and leave it alone."""

from __future__ import annotations

import logging
import os
import sys
from types import FrameType
from typing import Any

from ..errors import OrderError
from ..job.conditions import is_expected, is_made_a_number
from ..job.hosts import accelerator_count
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

logger = logging.getLogger(__name__)

_EFFECT = "the script distributes itself: ddp_patch stands aside"
_SEVERAL = "with several devices the script distributes itself: ddp_patch stands aside"
_VARIABLE = "a script that cannot do without a launcher's variable finds it: ddp_patch stands aside"
# Of libraries that the script may import: module, target, what the script calls.
_DOORS = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.__init__", "FSDP"),
    ("torch.distributed.device_mesh", "init_device_mesh", "torch.distributed.init_device_mesh"),
    ("torch.distributed.device_mesh", "DeviceMesh.__init__", "torch.distributed.DeviceMesh"),
    ("torch.distributed.rpc", "init_rpc", "torch.distributed.rpc.init_rpc"),
    ("transformers.training_args", "TrainingArguments.__post_init__", "transformers.TrainingArguments"),
    ("transformers.trainer", "Trainer.__init__", "transformers.Trainer"),
    ("deepspeed", "initialize", "deepspeed.initialize"),
    ("deepspeed", "init_distributed", "deepspeed.init_distributed"),
)
# These distribute only where they are asked for several devices.
_LIGHTNING = (
    ("lightning.fabric.fabric", "Fabric.__init__", "lightning.Fabric"),
    ("lightning_fabric.fabric", "Fabric.__init__", "lightning_fabric.Fabric"),
    ("lightning.pytorch.trainer.trainer", "Trainer.__init__", "lightning.Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer.__init__", "pytorch_lightning.Trainer"),
)


def door(what: str) -> Wrapper:
    """A wrapper for what a script calls that distributes itself."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if not session.job.wrapping.is_under_way:
            _stand_aside(session, f"calls {what}")
        return wrapped(*args, **kwargs)

    return call


def _group(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not session.job.wrapping.is_under_way:
        given, ranks = kwargs.get("world_size", args[3] if len(args) > 3 else -1), session.job.placement.world_size
        if given not in (-1, ranks):
            processes = "one process" if given == 1 else f"{given} processes"
            raise OrderError(
                f"{script_line()}: the script makes a process group of {processes}, and {ranks} ranks run it. Leave "
                "init_process_group and DistributedDataParallel out, and it is one process; or leave "
                "ddp_patch.enable() out of a script that distributes itself."
            )
        _stand_aside(session, "calls torch.distributed.init_process_group")
    return wrapped(*args, **kwargs)


def several(what: str) -> Wrapper:
    """A wrapper for what distributes where it is asked for several devices."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if asks_for_several(**kwargs):
            _stand_aside(session, f"calls {what} with several devices")
        return wrapped(*args, **kwargs)

    return call


def _variable(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except KeyError:
        hidden = session.job.one_process
        (name,) = args
        if not hidden.is_hiding or name not in hidden.variables:
            raise
        asking, reader = _asking()
        hidden.asked.add(name)
        if reader is None or (not is_made_a_number(name, reader) if asking else is_expected(KeyError, reader)):
            raise
    _stand_aside(session, f"needs os.environ[{name!r}]")
    return os.environ[name]


def _stand_aside(session: Session, why: str) -> None:
    if session.ledger.loaders or session.ledger.replicas:
        raise OrderError(
            f"{script_line()}: the script {why}, after batches had been dealt, so ddp_patch cannot stand aside any "
            "more. Leave ddp_patch.enable() out of a script that distributes itself."
        )
    session.stand_aside()
    if session.job.placement.rank == 0:
        logger.warning("%s: the script %s, so it distributes itself: ddp_patch stands aside.", script_line(), why)


def asks_for_several(
    *, devices: Any = "auto", num_nodes: int = 1, strategy: Any = "auto", accelerator: Any = "auto", **rest: Any
) -> bool:
    """Tell whether arguments of Lightning's ``Trainer`` or ``Fabric`` ask for more than one process."""
    named = strategy if isinstance(strategy, str) else type(strategy).__name__
    if int(num_nodes) > 1 or named not in ("auto", "single_device", "SingleDeviceStrategy", "NoneType"):
        return True
    available = 1 if accelerator in ("cpu", "mps") else max(1, accelerator_count())
    if isinstance(devices, str) and devices.strip("-").isdigit():
        devices = int(devices)
    if isinstance(devices, int):
        return (available if devices == -1 else devices) > 1
    if isinstance(devices, str):
        return available > 1 if devices == "auto" else len([part for part in devices.split(",") if part.strip()]) > 1
    return devices is not None and len(devices) > 1


def _asking() -> tuple[bool, FrameType | None]:
    """Tell who reads a variable, and whether by a method that allows for it to be missing."""
    frame: FrameType | None = sys._getframe(2)
    asking = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in ("_collections_abc", "collections.abc"):  # Mapping.get, "in", setdefault, pop
            asking = True
        elif module.partition(".")[0] != "wrapt" and not (asking and module == "os"):  # os.getenv
            break
        frame = frame.f_back
    return asking, frame


PATCHES = (
    Patch("torch.distributed.distributed_c10d", "init_process_group", _group, _EFFECT),
    Patch(
        "torch.nn.parallel.distributed",
        "DistributedDataParallel.__init__",
        door("DistributedDataParallel"),
        _EFFECT,
    ),
    Patch("accelerate.accelerator", "Accelerator.__init__", door("accelerate.Accelerator"), _EFFECT),
    Patch("os", "_Environ.__getitem__", _variable, _VARIABLE),
    *(Patch(module, target, door(what), _EFFECT, when_imported=module) for module, target, what in _DOORS),
    *(Patch(module, target, several(what), _SEVERAL, when_imported=module) for module, target, what in _LIGHTNING),
)
