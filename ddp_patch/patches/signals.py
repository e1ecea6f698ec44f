"""signal.signal, alarm: the script's handlers run on every rank at the same line, of a timer as well."""

from __future__ import annotations

import numbers
import signal
import threading
from types import FrameType
from typing import Any

from ..job.signals import HEEDED
from ..patch import Args, Kwargs, Patch
from ..session import Session

_ALARM = getattr(signal, "SIGALRM", -1)


def _signal(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    arguments = {**dict(zip(("signalnum", "handler"), args, strict=False)), **kwargs}
    is_call = len(args) + len(kwargs) == 2 and arguments.keys() == {"signalnum", "handler"}
    if not is_call or threading.current_thread() is not threading.main_thread():
        return wrapped(*args, **kwargs)  # an error of the caller's, which Python words
    if not session.rank_zero.in_lockstep():  # for what one rank does
        return wrapped(*args, **kwargs)
    if arguments["signalnum"] == _ALARM:
        return session.job.signals.handle_timer(wrapped, arguments["handler"], session.agreed)
    return session.job.signals.handle(wrapped, arguments["signalnum"], arguments["handler"])


def _getsignal(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    handler = wrapped(*args, **kwargs)
    if not session.rank_zero.in_lockstep():
        return handler
    return session.job.signals.handler(args[0] if args else kwargs["signalnum"], handler)


def _alarm(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return _timed(session, wrapped, args, *args) if not kwargs else wrapped(*args, **kwargs)


def _setitimer(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if kwargs or not args or args[0] != signal.ITIMER_REAL:
        return wrapped(*args, **kwargs)
    return _timed(session, wrapped, args, *args[1:])


def _timed(session: Session, wrapped: Any, args: Args, delay: Any = None, interval: Any = 0) -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    if not isinstance(delay, numbers.Real) or not is_main or not session.rank_zero.in_lockstep():
        return wrapped(*args)
    return session.job.signals.set_timer(wrapped, args, float(delay) > 0, session.agreed)


def _add_to_loop(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    number, callback, *callback_args = (*args, *(kwargs[name] for name in ("sig", "callback") if name in kwargs))
    if number not in HEEDED or not session.rank_zero.in_lockstep():
        return wrapped(*args, **kwargs)
    wrapped(number, callback, *callback_args)  # what it refuses; it would call the callback where the signal came alone
    wrapped(number, _nothing)

    def come(number: int, frame: FrameType | None) -> None:
        if not instance.is_closed():
            instance.call_soon_threadsafe(callback, *callback_args)

    signal.signal(number, come)


def _nothing() -> None:
    """Be what the loop itself calls, on the rank that is signalled."""


_TIMED = "what fired on one rank is heeded by all before it"

PATCHES = (
    Patch("signal", "signal", _signal, "handlers run on every rank at the same line of the script, once"),
    Patch("signal", "alarm", _alarm, _TIMED, optional=True),
    Patch("signal", "setitimer", _setitimer, _TIMED, optional=True),
    Patch(
        *("asyncio", "SelectorEventLoop.add_signal_handler", _add_to_loop),
        "the loops of all ranks call it, from the same line of the script",
        when_imported="asyncio",
        optional=True,
    ),
    Patch("signal", "getsignal", _getsignal, "the script's handler"),
)
