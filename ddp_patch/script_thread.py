"""Which thread is the script's: Python's main thread, unless ``enable()`` was called in another one.

A launcher that keeps its processes calls the script's function in a thread, beside its own.
"""

from __future__ import annotations

import threading


class Script:
    """The one place that knows it."""

    thread: threading.Thread | None = None  # None: Python's main thread; in a child that was forked, that is another
    ident: int = threading.main_thread().ident or 0  # of it; read at every point
    launchers: frozenset[threading.Thread] = frozenset()  # which were there before the script, and are none of its own


def begin(*, is_kept: bool) -> None:
    """Make this thread the script's.

    Args:
        is_kept: the process is its launcher's, and so are the threads that run beside this one.
    """
    this, main = threading.current_thread(), threading.main_thread()
    Script.thread = None if this is main else this
    Script.ident = this.ident or 0
    Script.launchers = frozenset(threading.enumerate()) - {this} if is_kept and this is not main else frozenset()


def end() -> None:
    """Make Python's main thread the script's again."""
    Script.thread, Script.launchers = None, frozenset()
    Script.ident = threading.main_thread().ident or 0


def is_here() -> bool:
    """Tell whether this thread is the script's."""
    if threading.get_ident() == Script.ident:  # in every step
        return True
    return threading.current_thread() is (Script.thread or threading.main_thread())  # in a child that was forked


def is_launchers() -> bool:
    """Tell whether this thread is one of the launcher's, whose doings are no effects of the script."""
    return bool(Script.launchers) and threading.current_thread() in Script.launchers


def native_id() -> int | None:
    """Give the system's number of the script's thread."""
    return (Script.thread or threading.main_thread()).native_id
