"""Where the ranks of a job are: which share a host, and which device each has, by what they find themselves.

Launchers leave variables out (many SLURM recipes set RANK and WORLD_SIZE alone) or count in ways of their own (with one
visible device for each task, every task's has index 0). So each rank leaves what it sees in the job's store, and all of
them work out the same from it.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..errors import LaunchError
from . import interfaces, reaching, software
from .launcher import LaunchInfo, Placement

_NAMED = 8  # ranks in a message


@dataclass(frozen=True)
class HostView:
    """What one rank sees."""

    host: str  # the same for ranks that see each other's memory
    name: str  # of the host, for messages
    kind: str  # of its accelerators, or "cpu"
    devices: tuple[str, ...]  # identities of the visible accelerators, in their order
    local_rank: int | None  # as the launcher says
    error: str = ""  # why it cannot see its accelerators
    network: str = ""  # the same for ranks that reach each other by 127.0.0.1
    address: str = ""  # that ranks of other hosts are told, if it is known
    is_given: bool = False  # by a variable that names its interface
    misnamed: str = ""  # a variable that names an interface which the host has not
    key: dict[str, str] = field(default_factory=dict)  # what it brings along for the ranks' key
    mounts: str = ""  # the same for ranks that find the same files under the same names
    software: tuple[tuple[str, str], ...] = ()  # what has to be the same everywhere, by name
    order: str = ""  # the same for ranks whose sets of strings have the same order
    takes_several: bool = False  # its NCCL lets several ranks have one GPU
    cards: tuple[str, ...] = ()  # of which they are, which may be slices of one; none where that is not told


@dataclass(frozen=True)
class RankLocation:
    """Where one rank is."""

    placement: Placement
    device: int | None  # index among the accelerators that it sees
    shares: bool  # some ranks of the job have one device
    by_gloo: bool = False  # and talk by gloo, as NCCL wants a GPU for each, or they have slices of one
    visible: int = 0  # accelerators that the process sees


def look(local_rank: int | None) -> HostView:
    """See this rank's host and accelerators.

    Args:
        local_rank: as the launcher says, if it does.
    """
    kind, found, why, several = "cpu", list[tuple[str, str]](), software.said_of_cuda(), False
    try:
        if accelerator_count():
            kind = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
            found = [_identity(kind, index) for index in range(torch.accelerator.device_count())]
            several = kind == "cuda" and software.nccl_takes_several()
    except Exception as error:  # noqa: BLE001 — a device that is broken, say: all ranks raise it, and none waits
        why = f"{type(error).__name__}: {error}"
    is_given = bool(interfaces.requested())
    return HostView(
        *(host(), socket.gethostname(), kind, tuple(device for device, _ in found), local_rank, why),
        network=interfaces.network(),
        address=interfaces.address() if is_given else interfaces.toward(os.environ.get("MASTER_ADDR", "")),
        is_given=is_given,
        misnamed=interfaces.misnamed(),
        mounts=_mounts(),
        software=software.versions(),
        order=hashlib.sha256(str(hash("order")).encode()).hexdigest()[:12],
        takes_several=several,
        cards=tuple(card for _, card in found),
    )


def host() -> str:
    """Name what processes have in common that see each other's ids and shared memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino} {os.stat('/dev/shm').st_dev}"
    except OSError:
        return socket.gethostname()


def _mounts() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/mnt').st_ino}"
    except OSError:
        return socket.gethostname()


def place(info: LaunchInfo, seen: Sequence[HostView], may_share: bool) -> RankLocation:
    """Work out where a rank is.

    Args:
        info: from the launcher.
        seen: what each rank sees.
        may_share: several ranks may have one device.

    Raises:
        LaunchError: on every rank: if one cannot see its accelerators or only some have any, or there are fewer than
            ranks and none may be shared; if one cannot be reached by the others.
    """
    failed = next((rank for rank, its in enumerate(seen) if its.error), None)
    if failed is not None:
        raise LaunchError(
            f"Rank {failed} on {seen[failed].name} cannot use its accelerators: {seen[failed].error}. Mend that, or "
            'compute on the host (CUDA_VISIBLE_DEVICES="").'
        )
    reaching.refuse_unreached(seen)
    _refuse_several_kinds(seen)
    hosts: dict[str, list[int]] = {}
    for rank, its in enumerate(seen):
        hosts.setdefault(its.host, []).append(rank)
    chosen: dict[int, int] = {}
    taken: set[str] = set()  # of the job: ranks in containers of their own may see the same
    for ranks in hosts.values():
        by_launcher = {seen[rank].local_rank: rank for rank in ranks}
        if by_launcher.keys() == {*range(len(ranks))}:
            ranks[:] = [by_launcher[index] for index in range(len(ranks))]
        for position, rank in enumerate(ranks):
            devices = seen[rank].devices
            if devices:
                free = (index for index, device in enumerate(devices) if device not in taken)
                chosen[rank] = next(free, position % len(devices))
                taken.add(devices[chosen[rank]])
    owners: dict[str, list[int]] = {}
    for rank, index in chosen.items():
        owners.setdefault(seen[rank].devices[index], []).append(rank)
    shared = next((ranks for ranks in owners.values() if len(ranks) > 1), None)
    if shared is not None and not may_share:
        name, kind = seen[shared[0]].name, seen[shared[0]].kind
        raise LaunchError(
            f"{name_ranks(shared).capitalize()} on {name} would share one {kind} device, which makes none of them "
            f"faster. Start one rank for each device (torchrun --nproc-per-node={len(seen[shared[0]].devices)}, or one "
            "task for each), or write ddp_patch.enable(share_devices=True) to try a script out."
        )
    host_ranks = hosts[seen[info.rank].host]
    placement = Placement(info.rank, info.world_size, host_ranks.index(info.rank), len(host_ranks))
    # NCCL tells GPUs by their place on the bus, which slices of one have in common (https://github.com/NVIDIA/nccl,
    # issue 1716).
    cards = [(seen[rank].cards or seen[rank].devices)[index] for rank, index in chosen.items()]
    by_gloo = len({*cards}) < len(cards) and not all(its.takes_several for its in seen)
    return RankLocation(placement, chosen.get(info.rank), shared is not None, by_gloo, len(seen[info.rank].devices))


def accelerator_count() -> int:
    """Count the visible accelerators that ranks can have one each of, without touching any."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return 0 if kind is None or kind.type == "mps" else torch.accelerator.device_count()


def _identity(kind: str, index: int) -> tuple[str, str]:
    """Tell a device from all others, whatever its index is in this process, and the card that it is a slice of."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if kind == "cuda" else []
    its = torch.get_device_module(kind).get_device_properties(index)
    # Of slices of a GPU, one is visible: the first that is named.
    slice_of_gpu = next((name.strip() for name in named[index : index + 1] if name.strip().startswith("MIG-")), None)
    own = slice_of_gpu or getattr(its, "uuid", None)
    device = f"{host()} {index}" if own is None else str(own)
    bus = [getattr(its, f"pci_{of}_id", None) for of in ("domain", "bus", "device")]
    return device, device if None in bus else f"{host()} {':'.join(map(str, bus))}"


def _refuse_several_kinds(seen: Sequence[HostView]) -> None:
    kinds: dict[str, list[int]] = {}
    for rank, its in enumerate(seen):
        kinds.setdefault(its.kind, []).append(rank)
    if len(kinds) > 1:
        listing = "; ".join(
            f"{kind} on {name_ranks(ranks)} ({', '.join(sorted({seen[rank].name for rank in ranks})[:_NAMED])})"
            for kind, ranks in kinds.items()
        )
        raise LaunchError(
            f"The ranks see devices of different kinds: {listing}. One job computes on one kind: make accelerators "
            'visible to all of its ranks, or to none (CUDA_VISIBLE_DEVICES="").'
        )


def name_ranks(ranks: Sequence[int]) -> str:
    """Name them for a message; the first of many."""
    named = ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {named}"
