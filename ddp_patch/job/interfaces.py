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


def requested() -> str:
    """Give the interface that gloo is told to use; empty where it shall find out."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]


def address() -> str:
    """The address that gloo tells the other ranks (torch 2.13, ``ProcessGroupGloo``); empty where that is not known."""
    name = requested()
    try:
        return _address_of(name) if name else socket.gethostbyname(socket.gethostname())
    except OSError:
        return "" if name else "127.0.0.1"


def toward(host: str) -> str:
    """Give the address of this host from where packets leave for another one; empty where none do."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(where)  # sends nothing
                return str(probe.getsockname()[0])
    return ""


def having(where: str) -> str:
    """Name the interface of this host that has an address; empty if none has."""
    names = [name for _, name in socket.if_nameindex()]
    if ":" in where:
        packed = ipaddress.ip_address(where).packed.hex()
        with contextlib.suppress(OSError):  # without IPv6
            rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
            return next((row[-1] for row in rows if row[0] == packed), "")
    for name in names:
        with contextlib.suppress(OSError):
            if _address_of(name) == where:
                return name
    return ""


def named() -> str:
    """Name the interface that gloo uses, with its address, for people."""
    where = address()
    name = requested() or (having(where) if where else "")
    return f"{name} {where}".strip()


def misnamed() -> str:
    """Say which variable names interfaces that this host has not; empty if none does."""
    existing = [name for _, name in socket.if_nameindex()]
    for variable, has in _CHOICES.items():
        names = os.environ.get(variable, "")
        if names and not has(names, existing):
            return f"{variable}={names!r} names no interface of this host, which has {', '.join(existing)}"
    return ""


def of_loopback() -> str | None:
    """Name the interface that this host alone sees."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            if is_loopback(_address_of(name)):
                return name
    return None


def is_loopback(where: str) -> bool:
    """Tell whether an address is seen by its own host alone."""
    return bool(where) and ipaddress.ip_address(where).is_loopback


def _by_gloo(names: str, existing: list[str]) -> bool:
    return all(name in existing for name in names.split(","))


def _by_nccl(names: str, existing: list[str]) -> bool:
    """Prefixes, or names after ``=``; what they leave out after ``^`` (NCCL's user guide, environment variables)."""
    leaves_out, is_exact = names.startswith("^"), names.lstrip("^").startswith("=")
    wanted = names.lstrip("^=").split(",")
    named = [name for name in existing if any(name == want if is_exact else name.startswith(want) for want in wanted)]
    return len(named) < len(existing) if leaves_out else bool(named)


def _address_of(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack(_IFREQ, name.encode()[:15]))
    return socket.inet_ntoa(found[20:24])


_CHOICES: dict[str, Callable[[str, list[str]], bool]] = {
    "GLOO_SOCKET_IFNAME": _by_gloo,
    "NCCL_SOCKET_IFNAME": _by_nccl,
}
