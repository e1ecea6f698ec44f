"""Stores and sockets that nobody on another host reaches."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in its __all__

from . import interfaces

ADDRESS = "127.0.0.1"
_BACKLOG = 128
_PATIENCE = timedelta(seconds=60)  # of torchrun's own store


def listening_store(
    address: str = ADDRESS,
    port: int = 0,
    *,
    world_size: int | None = None,
    timeout: timedelta = _PATIENCE,
) -> tuple[Any, int]:
    """Make a store that listens on loopback; torch's listens on all interfaces, whatever it is called by (torch 2.13).

    Args:
        address: of this host's own; IPv4 or IPv6.
        port: 0 takes one that is free.
        world_size: of the job.
        timeout: of what is asked there.

    Returns:
        the store, and its port.

    Raises:
        OSError: if the port is taken.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=max(_BACKLOG, world_size or 0))
    port = listening.getsockname()[1]
    store = TCPStore(
        *(address, port, world_size),
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,  # a script that distributes itself after all asks for the same one
        master_listen_fd=listening.detach(),
    )
    return store, port


def of_name(name: str) -> str | None:
    """The address that a name stands for which means the same host on every host, its own; None for other names.

    A host's own name may stand for a loopback address as well (Debian: 127.0.1.1), on that host alone.
    """
    if name == "localhost":
        return ADDRESS
    try:
        return name if ipaddress.ip_address(name).is_loopback else None
    except ValueError:
        return None


@contextlib.contextmanager
def sockets(networks: set[str]) -> Iterator[None]:
    """Have gloo and NCCL listen on loopback while they connect ranks of one host, unless the user chose an interface.

    Args:
        networks: of the ranks; one for those that reach each other by 127.0.0.1.
    """
    name = interfaces.of_loopback() if len(networks) == 1 else None
    chosen: Mapping[str, str] = {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    ours = {variable: value for variable, value in chosen.items() if not os.environ.get(variable)}
    before = {variable: os.environ.get(variable) for variable in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value
