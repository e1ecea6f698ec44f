"""Where the ranks of a job first meet: a store, which rank 0 makes if the launcher made none.

A launcher that tells no port has ranks that share a host. Rank 0 takes a port that is free, and leaves it under the
job's name in a folder of its user's own, so that no port is chosen before it is taken.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in its __all__
from torch.distributed.rendezvous import rendezvous

from ..errors import LaunchError
from . import attempt, loopback
from .launcher import LaunchInfo
from .siblings import Siblings, without_store
from .store_waits import Waiting

_LOOK = 0.05  # seconds between two looks for rank 0's note
_ANSWER_WAIT = 30.0  # seconds, in which a store answers that accepts connections
_TELL_WAIT = 2.0  # seconds, in which the others of this host see for themselves what ends rank 0
_LOOPBACK = "127.0.0.1"
_BEFORE = "before it came to ddp_patch.enable()"


def meet(info: LaunchInfo, timeout: float) -> Any:
    """Come to the store of the job.

    Args:
        info: from the launcher.
        timeout: seconds to wait for the others.

    Raises:
        LaunchError: if they do not come, or something else has the port.
    """
    if info.address is None and info.launcher.completes:
        return _meet_on_one_host(info, timeout)
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    at = f"{address}:{port} ({info.launcher.address}, {info.launcher.port})"
    try:
        if (info.rank or info.launcher.keeps) and not attempt.is_agents():
            return _answered(lambda: _store(info, timeout), info, address, int(port), at, timeout)
        return _store(info, timeout)
    except (dist.DistError, OSError) as error:
        why = str(error).partition("\n")[0].rstrip(".")
        if "EADDRINUSE" in why or getattr(error, "errno", None) == errno.EADDRINUSE:
            raise LaunchError(
                f"{_named(info)} cannot take the port {at}: another program "
                f"has it, or an earlier run of this one. Name a free one: export MASTER_PORT={int(port) % 60000 + 1}"
            ) from None
        raise LaunchError(
            f"{_named(info)} did not meet the others at {at}: {why}. Start every rank, rank 0 on the host of "
            "that name, and let them through to its port."
        ) from None


def holder() -> int | None:
    """Give the rank whose process holds the store, which answers nobody while that is stopped, and goes with it."""
    return None if attempt.is_agents() else 0


def _store(info: LaunchInfo, timeout: float) -> Any:
    if attempt.is_agents():
        return next(rendezvous("env://", info.rank, info.world_size, timeout=timedelta(seconds=timeout)))[0]
    address, port, patience = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=timeout)
    holds = info.rank == 0 and not info.launcher.keeps
    where = loopback.of_name(address) if holds else None
    if where is not None:
        return loopback.listening_store(where, port, world_size=info.world_size, timeout=patience)[0]
    # Not env://, which waits for all and then cannot name those that lack.
    return TCPStore(
        *(address, port, None, holds),
        timeout=patience,
        wait_for_workers=False,
        multi_tenant=True,  # a script that distributes itself may come to the same port
    )


def _answered(make: Any, info: LaunchInfo, address: str, port: int, at: str, timeout: float) -> Any:
    """Connect to a store; raise where something else listens, which torch's would wait for without end (torch 2.13)."""
    found: list[Any] = []
    done = _thread.allocate_lock()  # not threading's: the script counts its own threads
    done.acquire()

    def connect() -> None:
        try:
            found.append(make())
        except BaseException as error:  # noqa: BLE001 — it is raised where it is waited for
            found.append(error)
        finally:
            done.release()

    end = time.monotonic() + timeout + 1
    _thread.start_new_thread(connect, ())
    accepted_at, siblings = None, Siblings(info)
    while not done.acquire(timeout=_LOOK if accepted_at is None else 1.0):
        now = time.monotonic()
        if siblings.has_lost_one():
            _refuse_lost(info, siblings)
        if accepted_at is None:
            with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0):
                accepted_at = now
        elif now - accepted_at > min(_ANSWER_WAIT, timeout) or now > end:
            raise LaunchError(
                f"{_named(info)} found at {at} something that does not answer as rank 0 of this job. Name a port "
                f"that is free on that host: export MASTER_PORT={port % 60000 + 1}"
            )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


# --- on one host ------------------------------------------------------------------------------------------------------


def _meet_on_one_host(info: LaunchInfo, timeout: float) -> Any:
    note = _folder() / hashlib.sha256(f"{info.launcher.name} {info.job or _origin(info)}".encode()).hexdigest()[:24]
    end, siblings = time.monotonic() + timeout, Siblings(info)
    store = _opened(info, note, timeout) if info.rank == 0 else _found(info, note, end, siblings)
    try:
        if store.add("ddp_patch/met", 1) == info.world_size:
            store.set("ddp_patch/met/all", "1")
        waiting = Waiting(store, siblings.has_lost_one)
        try:
            if waiting.get("ddp_patch/met/all", max(end - time.monotonic(), 0.0)) is None:
                if time.monotonic() < end:
                    _refuse_lost(info, siblings, note)
                _refuse_missing(info, note)
        except dist.DistError as error:  # the store went with rank 0
            last = time.monotonic() + _TELL_WAIT + 1
            while not (is_gone := siblings.has_lost_one()) and time.monotonic() < last:
                time.sleep(_LOOK)
            raise siblings.refusal(_BEFORE) if is_gone else without_store(info) from error
        finally:
            waiting.close()
    finally:
        if info.rank == 0:
            note.unlink(missing_ok=True)
    return store


def _opened(info: LaunchInfo, note: Path, timeout: float) -> Any:
    store, port = loopback.listening_store(world_size=info.world_size, timeout=timedelta(seconds=timeout))
    mark = secrets.token_hex(8)
    store.set("ddp_patch/mark", mark)
    os.environ.update(MASTER_ADDR=_LOOPBACK, MASTER_PORT=str(port))
    left = note.with_suffix(f".{os.getpid()}")
    left.write_text(f"{port} {mark}")
    left.replace(note)
    return store


def _found(info: LaunchInfo, note: Path, end: float, siblings: Siblings) -> Any:
    seen = ""
    while time.monotonic() < end:
        if siblings.has_lost_one():
            _refuse_lost(info, siblings)
        with contextlib.suppress(FileNotFoundError):
            text = note.read_text()
            if text != seen and (store := _marked(text, info, end)) is not None:
                return store
            seen = text
        time.sleep(_LOOK)
    return _refuse_missing(info, note)


def _marked(text: str, info: LaunchInfo, end: float) -> Any:
    """Connect to whom a note names; None where that is over: an earlier program of the same job ended before it met."""
    port, mark = text.split()
    with contextlib.suppress(OSError), socket.create_connection((_LOOPBACK, int(port)), timeout=1.0):
        at, left = f"{_LOOPBACK}:{port}", max(end - time.monotonic(), 1.0)
        with contextlib.suppress(dist.DistError, LaunchError):
            store = _answered(
                lambda: TCPStore(_LOOPBACK, int(port), None, False, timeout=timedelta(seconds=left)),
                *(info, _LOOPBACK, int(port), at, left),
            )
            if store.check(["ddp_patch/mark"]) and store.get("ddp_patch/mark").decode() == mark:
                os.environ.update(MASTER_ADDR=_LOOPBACK, MASTER_PORT=port)
                return store
    return None


def _refuse_missing(info: LaunchInfo, note: Path) -> Any:
    raise LaunchError(
        f"{_named(info)} did not meet the others of {info.launcher.name} by {note}. If they share no folder or "
        "network, as containers of their own, tell them where rank 0 is: export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
    )


def _refuse_lost(info: LaunchInfo, siblings: Siblings, note: Path | None = None) -> Any:
    refusal = siblings.refusal(_BEFORE)
    if info.rank == 0:
        if note is not None:
            note.unlink(missing_ok=True)  # now: the launcher may end it with the first that says so
        time.sleep(_TELL_WAIT)
    raise refusal


def _named(info: LaunchInfo) -> str:
    return f"Rank {info.rank} of {info.world_size}, on {socket.gethostname()},"


def _folder() -> Path:
    """Give a folder that nobody but this user can read or write.

    Raises:
        LaunchError: if somebody else made it.
    """
    folder = Path(tempfile.gettempdir()) / f"ddp_patch-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} is not a folder of this user's alone, so what the ranks leave there could be somebody else's. "
            "Remove it, or name another place: export TMPDIR=/some/folder"
        )
    return folder


def _origin(info: LaunchInfo) -> str:
    """Name the process that started all ranks of this host: the nearest above this one that is no rank itself."""
    mark = f"{info.launcher.ranks[0]}=".encode()
    pid = os.getpid()
    while True:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent, started = int(fields[1]), fields[19]  # of proc(5), from the third field on
        variables: list[bytes] = []
        with contextlib.suppress(OSError):  # of another user
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        is_rank = pid == os.getpid() or any(variable.startswith(mark) for variable in variables)
        if parent == 0 or not is_rank:
            return f"{pid} {started} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
        pid = parent
