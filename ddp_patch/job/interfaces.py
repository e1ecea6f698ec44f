"""Which interface of a host the ranks talk over, as the variables of gloo and NCCL choose it."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_IFREQ = "256s"


def network() -> str:
    """Name what processes have in common that reach each other by 127.0.0.1."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def address() -> str:
    """The address that gloo tells the other ranks (torch 2.13, ``ProcessGroupGloo``); empty where that is not known."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    try:
        return _address_of(name) if name else socket.gethostbyname(socket.gethostname())
    except OSError:
        return "" if name else "127.0.0.1"


def named() -> str:
    """Name the interface that gloo uses, with its address, for people."""
    where = address()
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            if name == chosen or (not chosen and _address_of(name) == where):
                return f"{name} {where}"
    return where or chosen


def misnamed() -> str:
    """Say which variable names interfaces that this host has not; empty if none does."""
    own = [name for _, name in socket.if_nameindex()]
    for variable, has in _CHOICES.items():
        names = os.environ.get(variable, "")
        if names and not has(names, own):
            return f"{variable}={names!r} names no interface of this host, which has {', '.join(own)}"
    return ""


def is_loopback(where: str) -> bool:
    """Tell whether an address is seen by its own host alone."""
    return bool(where) and ipaddress.ip_address(where).is_loopback


def _by_gloo(names: str, own: list[str]) -> bool:
    return all(name in own for name in names.split(","))


def _by_nccl(names: str, own: list[str]) -> bool:
    """Prefixes, or names after ``=``; what they leave out after ``^`` (NCCL's user guide, environment variables)."""
    leaves_out, is_exact = names.startswith("^"), names.lstrip("^").startswith("=")
    wanted = names.lstrip("^=").split(",")
    named = [name for name in own if any(name == want if is_exact else name.startswith(want) for want in wanted)]
    return len(named) < len(own) if leaves_out else bool(named)


def _address_of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack(_IFREQ, name.encode()[:15]))
    return socket.inet_ntoa(found[20:24])


_CHOICES: dict[str, Callable[[str, list[str]], bool]] = {
    "GLOO_SOCKET_IFNAME": _by_gloo,
    "NCCL_SOCKET_IFNAME": _by_nccl,
}
