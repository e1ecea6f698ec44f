"""The process groups of a job, and the device that this rank has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import accelerate_quietly  # noqa: F401 — before anybody imports it

# isort: split
from accelerate.state import PartialState

from ..errors import LaunchError, OrderError
from . import hosts, rendezvous
from .one_process import OneProcess


def connect(
    place: hosts.RankLocation, timeout: float, environ: Mapping[str, str], launchers: dist.ProcessGroup | None
) -> tuple[torch.device, OneProcess, dist.ProcessGroup]:
    """Connect to the other ranks through Accelerate. Every rank comes here together.

    Args:
        place: of this rank.
        timeout: of collectives, in seconds.
        environ: the variables as the launcher left them.
        launchers: the default group, where it is the launcher's, which keeps its processes.

    Returns:
        the device, what is put away while a session runs, and the group of the global view.

    Raises:
        LaunchError: when Accelerate sees another number of ranks than were started.
    """
    placement, limit = place.placement, timedelta(seconds=timeout)
    # By its local rank it takes a device.
    os.environ["LOCAL_RANK"] = str(placement.local_rank if place.device is None else place.device)
    backends = _backends(place)
    # Of a launcher's group nothing is to be chosen.
    chosen: dict[str, Any] = {"backend": backends} if backends and launchers is None else {}
    state = PartialState(cpu=place.device is None, init_method=rendezvous.URL, timeout=limit, **chosen)
    device: torch.device = state.device
    if state.num_processes != placement.world_size:
        raise LaunchError(
            f"The launcher started {placement.world_size} ranks but Accelerate {state} sees "
            f"{state.num_processes}. Start the script with torchrun, or without ACCELERATE_* variables."
        )
    group = dist.GroupMember.WORLD
    assert group is not None
    if launchers is not None:  # it has its own time-out, and may be of another backend
        group = dist.new_group(timeout=limit, backend=backends or dist.get_backend())
    one_process = OneProcess(environ, group, launchers)
    # A group of its own keeps the collectives of the global view apart from DDP's, whose order depends on
    # which gradient is ready first.
    return device, one_process, dist.new_group(timeout=limit, backend=backends)


def _backends(place: hosts.RankLocation) -> str | None:
    """Give what ranks talk by; None for what torch and Accelerate take by default."""
    kind = place.device is not None and torch.accelerator.current_accelerator()
    if not kind:
        return None
    default = dist.Backend.default_device_backend_map.get(kind.type)
    # NCCL wants a device for each. Batches and models may live on the host as well as on the accelerator.
    return "gloo" if place.by_gloo else default and f"cpu:gloo,{kind.type}:{default}"


def refuse_others_device(place: hosts.RankLocation, used: int | None) -> None:
    """Refuse to go on where the script has used an accelerator that is another rank's.

    Args:
        place: of this rank.
        used: the index of the device that CUDA was initialised on, if it was.

    Raises:
        OrderError: naming both devices.
    """
    if used is not None and used != place.device:
        raise OrderError(
            f"CUDA was initialised on device {used}, but this is local rank {place.placement.local_rank}, whose device "
            f"is cuda:{place.device}. Move ddp_patch.enable() above the first line that uses CUDA."
        )
