"""A host that is gone from the network: nobody ends its connections, and who waits for it would wait for ever.

So the system asks the other end of each connection between hosts whether it is there, also while nothing is sent. Its
kernel answers, whatever the process there does, and one that computes or is stopped is not taken for one that is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Collection

_QUIET = 5  # seconds without a word, after which the other end is asked
_AGAIN = 5  # seconds between two questions
_TIMES = 3  # without an answer
_OPTIONS = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", _QUIET),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", _AGAIN),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", _TIMES),
    # What is sent and not acknowledged would be sent again for a quarter of an hour (tcp(7), tcp_retries2).
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", (_QUIET + _TIMES * _AGAIN) * 1000),
)


def notice_vanished_hosts(others: Collection[str]) -> None:
    """End connections of this process to hosts that are gone for 20 seconds. Linux; elsewhere the system's own times.

    Args:
        others: addresses of the other hosts.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # with one, the connections themselves would no longer wait
    try:
        _ask_all(others)
    finally:
        socket.setdefaulttimeout(before)


def _ask_all(others: Collection[str]) -> None:
    with contextlib.suppress(OSError):  # without /proc
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, or of another kind
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    with socket.socket(fileno=os.dup(int(name))) as connection:
                        _ask(connection, others)


def _ask(connection: socket.socket, others: Collection[str]) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return
    if str(connection.getpeername()[0]).removeprefix("::ffff:").partition("%")[0] not in others:
        return
    for level, name, value in _OPTIONS:
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)
