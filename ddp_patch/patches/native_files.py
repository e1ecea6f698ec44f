"""Files that C libraries write by themselves: rank 0's are real, the other ranks work on copies in memory."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import urllib.parse
from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.files import Files
from ..effects.ownership import Ownership
from ..effects.shared import SharedObjects, plain
from ..effects.turns import Turns
from ..patcher import Patch
from ..structure import map_leaves

_WRITTEN = "_ddp_patch_written"  # of h5py.File: it writes, together with those of the other ranks


def patches(files: Files) -> list[Patch]:
    """Rows for arrays that are files."""

    def memmap(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        array = wrapped(*args, **kwargs)
        if array.mode in ("r+", "w+") and array.filename is not None:
            files.mapped(array.filename)
        return array

    return [Patch("numpy", "memmap.__new__", memmap, "rank 0's is the file; who reads it waits for rank 0")]


def patch_when_imported(turns: Turns, owners: Ownership, files: Files, apply: Callable[[list[Patch]], None]) -> None:
    """Take over sqlite3, h5py and cv2 as soon as the script imports them.

    Args:
        turns: of the ranks.
        owners: tells which files are the script's.
        files: of the script.
        apply: applies patches, unless the session has ended.
    """

    def connect(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(database: Any, *rest: Any, **options: Any) -> Any:
            given = database
            if options.get("uri") and isinstance(database, str) and database.startswith("file:"):
                found = urllib.parse.urlsplit(database)
                given = ":memory:" if "mode=memory" in found.query else urllib.parse.unquote(found.path)
            held = given in (":memory:", "") or not owners.covers(given)
            if held or not (turns.are_taken() or turns.are_silent()):
                return wrapped(database, *rest, **options)
            path = os.path.abspath(os.fsdecode(files.leaders(given)))
            opened: list[Any] = []

            def act() -> None:
                opened.append(wrapped(database, *rest, **options))

            if turns.are_taken():
                turns.take("sqlite3.connect", act, [path], hands_over=False)  # what rank 0 wrote before is there
            if not opened:
                opened.append(wrapped(":memory:", *rest, **{**options, "uri": False}))
                try:
                    if os.path.exists(path):
                        with contextlib.closing(wrapped(path)) as there:
                            there.backup(opened[0])
                except sys.modules["sqlite3"].Error:
                    # No database, as rank 0 finds when it uses it; here it must not keep this rank from the next turn.
                    opened[0] = wrapped(path, *rest, **{**options, "uri": False})
            if turns.are_taken():
                turns.take("sqlite3.connect", lambda: None, [path])  # all have copied it
            return opened[0]

        return bind(*args, **kwargs)

    def open_hdf5(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def bind(name: Any, mode: str = "r", driver: Any = None, *rest: Any, **options: Any) -> None:
            real = functools.partial(wrapped, name, mode, driver, *rest, **options)
            is_path = isinstance(name, (str, bytes, os.PathLike)) and driver is None and not rest
            if not is_path or not (turns.are_taken() or turns.are_silent()) or not owners.covers(name):
                real()
            elif mode == "r":
                if turns.are_taken():
                    turns.follow("h5py.File", lambda: None)  # what it wrote is there
                wrapped(files.leaders(name), mode, driver, *rest, **options)
            else:
                begin_hdf5(instance, real, wrapped, os.path.abspath(os.fsdecode(name)), mode, options)

        bind(*args, **kwargs)

    def begin_hdf5(instance: Any, real: Any, wrapped: Any, path: str, mode: str, options: dict[str, Any]) -> None:
        is_taken = turns.are_taken()
        if turns.is_leader and is_taken:
            turns.take("h5py.File", lambda: None, [path])  # all have copied what there was
            turns.take("h5py.File", real, [path], hands_over=False)
        else:
            before = mode if os.path.exists(path) or mode != "r+" else "w"  # rank 0 meets the error
            held = {"backing_store": False, "locking": False}  # rank 0 has the lock
            options = {name: value for name, value in options.items() if name not in held}
            try:
                wrapped(path, "w" if mode in ("x", "w-") else before, "core", **held, **options)
            except OSError:  # no such format, as rank 0 finds
                wrapped(path, "w", "core", **held, **options)
            if is_taken:
                turns.take("h5py.File", lambda: None, [path])
                turns.take("h5py.File", lambda: None, [path])
        vars(instance)[_WRITTEN] = is_taken

    def close_hdf5(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if vars(instance).pop(_WRITTEN, False) and turns.are_taken():
            turns.follow("h5py.File.close", lambda: wrapped(*args, **kwargs), hands_over=False)
            if turns.is_leader:
                return
        wrapped(*args, **kwargs)

    def once(what: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            args, kwargs = map_leaves(plain, (args, kwargs))
            if turns.are_silent():
                return None
            if not turns.are_taken() or not owners.covers(args[0]):
                return wrapped(*args, **kwargs)
            return turns.take(what, lambda: wrapped(*args, **kwargs), [os.path.abspath(os.fsdecode(args[0]))])

        return call

    shared = SharedObjects(turns, owners)
    video = shared.sharing("cv2.VideoWriter")
    copies = "rank 0's file is real; the others work on a copy in memory"
    for module, rows in {
        "sqlite3": [Patch("sqlite3", "connect", connect, copies, also=("sqlite3.dbapi2:connect",))],
        "h5py": [
            Patch("h5py._hl.files", "File.__init__", open_hdf5, copies),
            Patch("h5py._hl.files", "File.close", close_hdf5, "rank 0's file is finished when it returns"),
        ],
        "cv2": [
            Patch("cv2", "imwrite", once("cv2.imwrite"), "rank 0 writes"),
            Patch("cv2", "VideoWriter", video, "rank 0's; all get what its methods return"),
        ],
    }.items():
        wrapt.register_post_import_hook(_applying(apply, rows), module)


def _applying(apply: Callable[[list[Patch]], None], rows: list[Patch]) -> Callable[[Any], None]:
    return lambda module: apply(rows)
