"""Files that C libraries write by themselves: rank 0's are real, the other ranks work on copies in memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.ownership import Ownership
from ..effects.turns import Turns
from ..patcher import Patch


def patch_when_imported(turns: Turns, owners: Ownership, apply: Callable[[list[Patch]], None]) -> None:
    """Take over sqlite3 and cv2 as soon as the script imports them.

    Args:
        turns: of the ranks.
        owners: tells which files are the script's.
        apply: applies patches, unless the session has ended.
    """

    def connect(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def bind(database: Any, *rest: Any, **options: Any) -> Any:
            held = database == ":memory:" or options.get("uri") or not owners.covers(database)
            if held or not (turns.are_taken() or turns.are_silent()):
                return wrapped(database, *rest, **options)
            path = os.path.abspath(os.fsdecode(database))
            opened: list[Any] = []

            def act() -> None:
                opened.append(wrapped(database, *rest, **options))

            if turns.are_taken():
                turns.take("sqlite3.connect", act, [path], hands_over=False)  # what rank 0 wrote before is there
            if not opened:
                opened.append(wrapped(":memory:", *rest, **options))
                try:
                    if os.path.exists(path):
                        with contextlib.closing(wrapped(path)) as there:
                            there.backup(opened[0])
                except sys.modules["sqlite3"].Error:
                    # No database, as rank 0 finds when it uses it; here it must not keep this rank from the next turn.
                    opened[0] = wrapped(database, *rest, **options)
            if turns.are_taken():
                turns.take("sqlite3.connect", lambda: None, [path])  # all have copied it
            return opened[0]

        return bind(*args, **kwargs)

    def once(what: str) -> Any:
        def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if turns.are_silent():
                return None
            if not turns.are_taken() or not owners.covers(args[0]):
                return wrapped(*args, **kwargs)
            return turns.take(what, lambda: wrapped(*args, **kwargs), [os.path.abspath(os.fsdecode(args[0]))])

        return call

    copies = "rank 0's file is real; the others work on a copy in memory"
    for module, rows in {
        "sqlite3": [Patch("sqlite3", "connect", connect, copies, also=("sqlite3.dbapi2:connect",))],
        "cv2": [Patch("cv2", "imwrite", once("cv2.imwrite"), "rank 0 writes")],
    }.items():
        wrapt.register_post_import_hook(_applying(apply, rows), module)


def _applying(apply: Callable[[list[Patch]], None], rows: list[Patch]) -> Callable[[Any], None]:
    return lambda module: apply(rows)
