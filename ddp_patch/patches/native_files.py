"""Files that C libraries write by themselves: rank 0's are real, the other ranks work on copies in memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any

import numpy as np

from ..effects.null_file import KEPT
from ..effects.shared import plain
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves
from .shared import SHARED, shared

_WRITTEN = "_ddp_patch_written"  # of h5py.File: it writes, together with those of the other ranks


def _memmap(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(kind: Any, filename: Any, dtype: Any = np.uint8, mode: Any = "r+", *rest: Any, **options: Any) -> Any:
        if mode in ("r+", "readwrite") and _is_too_large(session, filename):
            path = session.files.leaders(filename)
            array = _mapped(session, path, lambda mode: wrapped(kind, path, dtype, mode, *rest, **options))
        else:
            array = wrapped(*args, **kwargs)
        if array.mode in ("r+", "w+") and array.filename is not None:
            session.files.mapped(array.filename)
        return array

    return bind(*args, **kwargs)


def _is_too_large(session: Session, path: Any) -> bool:
    if not session.owners.covers(path):
        return False
    key = session.files.key(path)
    if session.rank_zero.in_lockstep():
        return bool(session.rank_zero.call("numpy.memmap", lambda: _size(key) > KEPT, [key]))
    return session.rank_zero.is_silent() and _size(key) > KEPT


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _mapped(session: Session, path: Any, real: Callable[[str], Any]) -> Any:
    """Map a file that is too large for copies: what the other ranks write stays in their memory."""
    session.ledger.note(
        f"{script_line()}: numpy.memmap({os.fsdecode(path)!r}) may write to a file that is too large for copies: where "
        "another rank reads what rank 0 has changed meanwhile, values differ. Write mode='r' if it is only read"
    )
    made: list[Any] = []
    if session.rank_zero.in_lockstep():
        local_path = os.path.abspath(os.fsdecode(path))
        session.disks.refuse_apart("numpy.memmap", local_path)
        session.rank_zero.barrier_call(
            "numpy.memmap", lambda: made.append(real("r+")), [local_path], broadcast_result=False
        )
    if not made:
        with session.rank_zero.alone():
            made.append(real("c"))
        made[0].mode = "r+"
    return made[0]


def _twin(session: Session, connect: Callable[..., Any], path: str) -> str:
    """Give this rank's copy of a database; all of its connections have the same one, as rank 0's have."""
    twin = os.path.join(session.files.scratch(), f"{hashlib.sha256(path.encode()).hexdigest()[:16]}.db")
    if not os.path.exists(path):
        with contextlib.suppress(FileNotFoundError):  # rank 0's is gone
            os.unlink(twin)
        return twin
    with contextlib.closing(connect(twin, timeout=0)) as copy, contextlib.closing(connect(path)) as there:
        try:
            copy.execute("BEGIN EXCLUSIVE")
        except sys.modules["sqlite3"].OperationalError:  # in use, with what rank 0's has: a backup would wait for ever
            return twin
        copy.rollback()
        there.backup(copy)
    return twin


def _seed() -> int:
    return int.from_bytes(os.urandom(16), "big")


def _draw_alike(connection: Any, seed: int) -> None:
    """Have ``ORDER BY random()`` give every rank the same order."""
    drawn = random.Random(seed)
    connection.create_function("random", 0, lambda: drawn.getrandbits(64) - 2**63)
    connection.create_function("randomblob", 1, lambda size: drawn.randbytes(max(int(size or 0), 1)))


def _connect(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(database: Any, *rest: Any, **options: Any) -> Any:
        name = database
        if options.get("uri") and isinstance(database, str) and database.startswith("file:"):
            found = urllib.parse.urlsplit(database)
            name = ":memory:" if "mode=memory" in found.query else urllib.parse.unquote(found.path)
        is_private = name in (":memory:", "") or not session.owners.covers(name)
        if is_private or not (session.rank_zero.in_lockstep() or session.rank_zero.is_silent()):
            connection = wrapped(database, *rest, **options)
            if is_private and session.rank_zero.in_lockstep() and session.owners.covers_calls():
                _draw_alike(connection, session.rank_zero.call("sqlite3.connect", _seed))
            return connection
        path = os.path.abspath(os.fsdecode(session.files.leaders(name)))
        opened: list[Any] = []

        def act() -> None:
            opened.append(wrapped(database, *rest, **options))

        if session.rank_zero.in_lockstep():
            session.disks.refuse_apart("sqlite3.connect", path)
            session.rank_zero.barrier_call(
                "sqlite3.connect", act, [path], broadcast_result=False
            )  # what rank 0 wrote before is there
        if not opened:
            try:
                with session.rank_zero.alone():
                    twin = _twin(session, wrapped, path)
            except sys.modules["sqlite3"].OperationalError:  # of this rank's disk: rank 0's file is not for it
                raise
            except sys.modules["sqlite3"].DatabaseError:
                # No database, as rank 0 finds when it uses it; here it must not keep this rank from the next effect.
                twin = path
            opened.append(wrapped(twin, *rest, **{**options, "uri": False}))
        if session.rank_zero.in_lockstep():
            seed = session.rank_zero.barrier_call("sqlite3.connect", _seed, [path])  # all have copied it
            _draw_alike(opened[0], seed)
        return opened[0]

    return bind(*args, **kwargs)


def _open_hdf5(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    def bind(name: Any, mode: str = "r", driver: Any = None, *rest: Any, **options: Any) -> None:
        real = functools.partial(wrapped, name, mode, driver, *rest, **options)
        is_path = isinstance(name, (str, bytes, os.PathLike)) and driver is None and not rest
        if (
            not is_path
            or not (session.rank_zero.in_lockstep() or session.rank_zero.is_silent())
            or not session.owners.covers(name)
        ):
            real()
        elif mode == "r":
            if session.rank_zero.in_lockstep():
                session.rank_zero.call("h5py.File", lambda: None)  # what it wrote is there
                session.disks.refuse_apart("h5py.File", os.path.abspath(os.fsdecode(session.files.leaders(name))))
            wrapped(session.files.leaders(name), mode, driver, *rest, **options)
        else:
            _begin_hdf5(session, instance, real, wrapped, os.path.abspath(os.fsdecode(name)), mode, options)

    bind(*args, **kwargs)


def _begin_hdf5(
    session: Session, instance: Any, real: Any, wrapped: Any, path: str, mode: str, options: dict[str, Any]
) -> None:
    is_taken = session.rank_zero.in_lockstep()
    if is_taken and mode in ("a", "r+"):
        session.disks.refuse_apart("h5py.File", path)
    if session.rank_zero.is_leader and is_taken:
        session.rank_zero.barrier_call("h5py.File", lambda: None, [path])  # all have copied what there was
        session.rank_zero.barrier_call("h5py.File", real, [path], broadcast_result=False)
    else:
        before = mode if os.path.exists(path) or mode != "r+" else "w"  # rank 0 meets the error
        overrides = {"backing_store": False, "locking": False}  # rank 0 has the lock
        options = {name: value for name, value in options.items() if name not in overrides}
        try:
            wrapped(path, "w" if mode in ("x", "w-") else before, "core", **overrides, **options)
        except OSError:  # no such format, as rank 0 finds
            wrapped(path, "w", "core", **overrides, **options)
        if is_taken:
            session.rank_zero.barrier_call("h5py.File", lambda: None, [path])
            session.rank_zero.barrier_call("h5py.File", lambda: None, [path])
    vars(instance)[_WRITTEN] = is_taken


def _close_hdf5(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    if vars(instance).pop(_WRITTEN, False) and session.rank_zero.in_lockstep():
        session.rank_zero.call("h5py.File.close", lambda: wrapped(*args, **kwargs), broadcast_result=False)
        if session.rank_zero.is_leader:
            return
    wrapped(*args, **kwargs)


def _once(what: str) -> Any:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        args, kwargs = map_leaves(plain, (args, kwargs))
        path = args[0] if args else kwargs.get("filename")
        if path is None or not session.owners.covers(path):
            return wrapped(*args, **kwargs)
        if session.rank_zero.is_silent():
            return True  # written by rank 0's thread
        if not session.rank_zero.in_lockstep():
            return wrapped(*args, **kwargs)
        paths = [os.path.abspath(os.fsdecode(path))]
        return session.rank_zero.barrier_call(what, lambda: wrapped(*args, **kwargs), paths)

    return call


def _applying(apply: Callable[[list[Patch]], None], rows: list[Patch]) -> Callable[[Any], None]:
    return lambda module: apply(rows)


_COPIES = "rank 0's file is real; the others work on a copy in memory"
_FINISHED = "rank 0's file is finished when it returns"

PATCHES = (
    Patch("numpy", "memmap.__new__", _memmap, "rank 0's is the file; all maps of it on another rank are of one copy"),
    Patch(
        "sqlite3",
        "connect",
        _connect,
        _COPIES,
        also=("sqlite3.dbapi2:connect",),
        when_imported="sqlite3",
    ),
    Patch("h5py._hl.files", "File.__init__", _open_hdf5, _COPIES, when_imported="h5py"),
    Patch("h5py._hl.files", "File.close", _close_hdf5, _FINISHED, when_imported="h5py"),
    Patch("cv2", "imwrite", _once("cv2.imwrite"), "rank 0 writes", when_imported="cv2"),
    Patch("cv2", "VideoWriter", shared("cv2.VideoWriter"), SHARED, when_imported="cv2"),
)
