"""The key that the ranks of a job share, and nobody else: where it comes from, and how they agree on it.

Our own agent makes one, the user names one by ``DDP_PATCH_KEY``, or rank 0 holds one in memory that the system lets
other processes of its user on this host read. Of it and of what every rank drew, a key is made for this very run: what
somebody recorded of an earlier one is worth nothing.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Mapping, MutableMapping, Sequence

from ..errors import LaunchError, OptionError
from . import hosts

VARIABLE = "DDP_PATCH_KEY"
REMEDY = f"Write once, and give it to every host by your launcher: export {VARIABLE}=$(openssl rand -hex 32)"
_SHORTEST = 32  # characters: a word could be guessed from any message that carries a code
_MEMORY = "ddp_patch_key"


def make(environ: MutableMapping[str, str]) -> None:
    """Have the ranks that this process starts inherit a key."""
    if not environ.get(VARIABLE):
        environ[VARIABLE] = secrets.token_hex(32)


def _sees() -> str:
    """Name what processes have in common that read each other's memory: a container's user is another one."""
    try:
        return f"{hosts.host()} {os.stat('/proc/self/ns/user').st_ino}"
    except OSError:
        return ""


class Offer:
    """What one rank brings along for the key, and lets the others know of it."""

    def __init__(self, rank: int) -> None:
        """Take the variable out of the environment, where children of the script would inherit it.

        Args:
            rank: of this process.

        Raises:
            OptionError: for a key that is too short.
        """
        self._user_key = os.environ.pop(VARIABLE, "").strip().encode()
        if 0 < len(self._user_key) < _SHORTEST:
            raise OptionError(
                f"{VARIABLE} has {len(self._user_key)} characters, and could be guessed: it takes at least "
                f"{_SHORTEST}. {REMEDY}"
            )
        # A descriptor of memory without a name: nothing of it is left, however this process ends.
        self._memory: int | None = None
        self.message = {"drawn": secrets.token_hex(16), "print": "", "host": "", "memory": ""}
        """For the other ranks, and for whoever reads the store."""
        if self._user_key:
            self.message["print"] = hmac.digest(self._user_key, b"which key", "sha256").hex()
        elif hasattr(os, "memfd_create"):
            self.message["host"] = _sees()
            if rank == 0:
                self._memory = os.memfd_create(_MEMORY)
                os.write(self._memory, secrets.token_bytes(32))
                self.message["memory"] = f"/proc/{os.getpid()}/fd/{self._memory}"

    def agreed(self, messages: Sequence[Mapping[str, str]]) -> bytes | None:
        """Make the key of this run.

        Args:
            messages: what each rank told.

        Returns:
            None if there is no key that all ranks could have.

        Raises:
            LaunchError: if some ranks have another key than others.
        """
        prints = [its.get("print", "") for its in messages]
        other = next((rank for rank, its in enumerate(prints) if its != prints[0]), None)
        if other is not None:
            has = "another" if prints[0] and prints[other] else "no" if prints[0] else "a"
            raise LaunchError(
                f"Rank {other} has {has} {VARIABLE}, unlike rank 0, so they would not take each other's word. {REMEDY}"
            )
        secret = self._user_key or self._left(messages)
        drawn = " ".join(its.get("drawn", "") for its in messages)
        return hmac.digest(secret, drawn.encode(), "sha256") if secret else None

    def close(self) -> None:
        """Let go of what the others have read."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def _left(self, messages: Sequence[Mapping[str, str]]) -> bytes:
        """Read rank 0's key, where all ranks see its processes."""
        host, path = self.message["host"], messages[0].get("memory", "")
        if not host or any(its.get("host") != host for its in messages):
            return b""
        if not re.fullmatch(r"/proc/\d+/fd/\d+", path):
            return b""
        try:
            with open(path, "rb") as memory:
                where = os.readlink(f"/proc/self/fd/{memory.fileno()}")
                user = os.fstat(memory.fileno()).st_uid
                # The store's word: another path may lead to what somebody else wrote, or knows.
                is_ours = where == f"/memfd:{_MEMORY} (deleted)" and user == os.geteuid()
                return memory.read() if is_ours else b""
        except OSError as error:
            if not _runs(path.split("/")[2]):
                raise LaunchError(
                    "Rank 0, which holds the key of the job, ended within ddp_patch.enable(). Look at what it printed."
                ) from None
            raise LaunchError(f"The key that rank 0 holds for the others cannot be read ({error}). {REMEDY}") from error


def _runs(pid: str) -> bool:
    """Tell whether a process has not ended. What is left of one that has, until it is waited for, runs nothing."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except FileNotFoundError:
        return False
    except OSError:  # of another user
        pass
    return True
