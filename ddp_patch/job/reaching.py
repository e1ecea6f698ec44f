"""Over which interface the ranks of several hosts reach each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import LaunchError
from . import interfaces

if TYPE_CHECKING:
    from .hosts import HostView, RankLocation


def choose_interface(seen: Sequence[HostView], rank: int) -> None:
    """Have gloo use the interface that leads to rank 0, where it would look its host's own name up.

    A name that is not known, or is 127.0.1.1 as Debian writes it into /etc/hosts, gives it an address that no other
    host reaches, and one of several interfaces may lead elsewhere.

    Args:
        seen: what each rank sees.
        rank: of this process.
    """
    here = seen[rank]
    if here.is_given or not _is_elsewhere(here, seen):
        return
    where = here.address
    if not where or interfaces.is_loopback(where):  # of rank 0's host, which knows itself by such a name
        where = next(filter(None, map(interfaces.toward, _reached(here, seen))), "")
    name = interfaces.having(where) if where else ""
    if name:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _reached(one: HostView, seen: Sequence[HostView]) -> list[str]:
    """Give addresses of other hosts."""
    others = [its.address for its in seen if its.network != one.network]
    return [where for where in others if where and not interfaces.is_loopback(where)]


def other_hosts(seen: Sequence[HostView], rank: int) -> set[str]:
    """Give the addresses by which ranks of other hosts are connected, and that of the store, if it is on one."""
    here = seen[rank]
    if not _is_elsewhere(here, seen):
        return set()
    named = os.environ.get("MASTER_ADDR", "")
    with contextlib.suppress(OSError):
        named = str(socket.getaddrinfo(named, None, type=socket.SOCK_STREAM)[0][4][0])
    return {named, *_reached(here, seen)} - {here.address}


def refuse_unreached(seen: Sequence[HostView]) -> None:
    """Refuse a rank that others could not connect to.

    Raises:
        LaunchError: on every rank, naming it.
    """
    for rank, its in enumerate(seen):
        if its.misnamed:
            raise LaunchError(f"Rank {rank} on {its.name}: {its.misnamed}. Name the one that reaches the other hosts.")
        is_seen = its.address and not interfaces.is_loopback(its.address)
        if its.address and not is_seen and _is_elsewhere(its, seen) and (its.is_given or not _reached(its, seen)):
            raise LaunchError(
                f"Rank {rank} on {its.name} would tell the others to connect to {its.address}, which only {its.name} "
                "reaches. Name the interface that reaches the other hosts (ip -brief address lists them): export "
                "GLOO_SOCKET_IFNAME=eth0, and NCCL_SOCKET_IFNAME."
            )


def is_to_be_tried_by_devices(place: RankLocation, seen: Sequence[HostView]) -> bool:
    """Tell whether devices of several hosts talk by other ways than their hosts do, as by NCCL, and connect late.

    On one host they reach each other, and a script whose model stays on the host has no use for their memory.
    """
    return place.device is not None and not place.by_gloo and _is_elsewhere(seen[place.placement.rank], seen)


def _is_elsewhere(one: HostView, seen: Sequence[HostView]) -> bool:
    """Whether some rank does not reach another's 127.0.0.1."""
    return any(other.network != one.network for other in seen if other.network and one.network)
