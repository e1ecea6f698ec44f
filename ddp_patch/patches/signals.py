"""signal.signal: the script's handlers run on every rank at the same line."""

from __future__ import annotations

import threading
from typing import Any

from ..patch import Args, Kwargs, Patch
from ..session import Session


def _signal(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    given = {**dict(zip(("signalnum", "handler"), args, strict=False)), **kwargs}
    is_call = len(args) + len(kwargs) == 2 and given.keys() == {"signalnum", "handler"}
    if not is_call or threading.current_thread() is not threading.main_thread():
        return wrapped(*args, **kwargs)  # an error of the caller's, which Python words
    if not session.rank_zero.in_lockstep():  # for what one rank does
        return wrapped(*args, **kwargs)
    return session.job.signals.handle(wrapped, given["signalnum"], given["handler"])


def _getsignal(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    handler = wrapped(*args, **kwargs)
    if not session.rank_zero.in_lockstep():
        return handler
    return session.job.signals.handler(args[0] if args else kwargs["signalnum"], handler)


PATCHES = (
    Patch("signal", "signal", _signal, "handlers run on every rank at the same line of the script, once"),
    Patch("signal", "getsignal", _getsignal, "the script's handler"),
)
