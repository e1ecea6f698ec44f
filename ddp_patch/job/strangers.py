"""Sockets of this host: who is at the other end, as the system knows it."""

from __future__ import annotations

import os
import socket
import struct

from ..errors import TrustError
from .key import REMEDY

_FORMAT = "3i"  # process, user, group: struct ucred of unix(7)


def refuse_strangers(connection: socket.socket) -> None:
    """Let nobody but this user's processes send what is unpickled here.

    Args:
        connection: of the family AF_UNIX.

    Raises:
        TrustError: for somebody else's.
    """
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux
        return
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_FORMAT))
    _, user, _ = struct.unpack(_FORMAT, credentials)
    if user != os.getuid():
        raise TrustError(
            f"A process of user {user} is at the other end of the socket that hands batches over on this host, and not "
            f"one of user {os.getuid()}, whose job this is. {REMEDY}"
        )
