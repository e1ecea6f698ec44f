"""Signals of N ranks are those of one process: the script's handler runs on every rank at the same line, once.

A launcher, a queue and a terminal signal one process, some or all, whenever it pleases them. A handler that ran at once
would have the ranks part: one leaves its loop a step before the others.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

from .agreement import EventAgreement
from .forwarded_signals import ForwardedSignals
from .next_line import at_next_line, of_script

HEEDED = tuple(
    signal.Signals[name]
    for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if name in signal.Signals.__members__
)

_ALARM = getattr(signal, "SIGALRM", None)
_NUMBERS = 256  # more than there are signals

Handler = Callable[[int, FrameType | None], Any]
Agreed = Callable[[Any], list[Any]]


class Signals:
    """What the script does when a signal comes."""

    def __init__(self, agreement: EventAgreement, heeded: ForwardedSignals) -> None:
        """Change nothing before ``begin``.

        Args:
            agreement: of the ranks.
            heeded: tells an agent of ours what need not end the job.
        """
        self._agreement = agreement
        self._heeded = heeded
        self._set: Callable[..., Any] = signal.signal
        self._handlers: dict[int, Handler] = {}  # the script's
        self._ignored: set[int] = set()  # by the script, or whoever started it
        self._due: list[int] = []  # what is to run in the script's thread, at once
        self._timer = 0  # how many of the script's timers were stopped, alike on all ranks
        self._may_fire = False  # one is set, on all ranks
        self._has_fired: bool | None = None  # while the ranks come to the end of a timer
        self._is_alone = 0
        self._runs = 0
        self._as_it_is: Callable[[], AbstractContextManager[None]] = nullcontext
        self._process = os.getpid()

    def begin(self, as_it_is: Callable[[], AbstractContextManager[None]]) -> None:
        """Take over the handlers that the script has set, and Python's own for Ctrl-C.

        Args:
            as_it_is: surrounds what this rank writes for itself.
        """
        self._as_it_is = as_it_is
        self._agreement.on_agreed = self._heed
        self._may_fire = _ALARM is not None and callable(signal.getsignal(_ALARM))
        if threading.current_thread() is threading.main_thread():
            for number in self._heeded.ignored():  # a process that the agent started has them as they are by default
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    signal.signal(number, signal.SIG_IGN)
            for number in HEEDED:
                handler = signal.getsignal(number)
                if callable(handler) or handler == signal.SIG_IGN:
                    self.handle(signal.signal, number, handler)

    def stop(self, *, goes_on: bool) -> None:
        """Give the script's handlers back.

        Args:
            goes_on: the script does. At its end a signal to one rank would have it end in another way than the others.
        """
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                with self._as_it_is():
                    is_ours = signal.getsignal(number) == self._on_signal
                if is_ours and (goes_on or handler is signal.default_int_handler):
                    self._set(number, handler)
        self._handlers.clear()
        if goes_on:
            self._ignored.clear()
        self._agreement.on_agreed = lambda event, at_point: None
        self._tell()

    def handle(self, real: Callable[..., Any], number: int, handler: Any) -> Any:
        """Set the script's handler.

        Args:
            real: ``signal.signal``.
            number: of the signal.
            handler: of the script, or a constant of ``signal``.

        Returns:
            the one before, which is the script's own again.
        """
        self._set = real
        if number not in HEEDED:
            return real(number, handler)
        before = real(number, self._on_signal if callable(handler) else handler)
        previous = self._handlers.pop(number, before)
        if callable(handler):
            self._handlers[number] = handler
        (self._ignored.add if handler == signal.SIG_IGN else self._ignored.discard)(number)
        self._tell()
        return previous if before == self._on_signal else before

    def handler(self, number: int, real: Any) -> Any:
        """Give the script's handler in place of ours."""
        return self._handlers.get(number, real) if real == self._on_signal else real

    def set_timer(self, real: Callable[..., Any], arguments: tuple[Any, ...], sets: bool, agreed: Agreed) -> Any:
        """Set or stop the script's timer. One that fired on some rank before is heeded first, on all.

        Later, the handler would find the script outside of what it was to be broken out of.

        Args:
            real: ``signal.alarm`` or ``signal.setitimer``.
            arguments: its arguments.
            sets: a timer, and does not stop it.
            agreed: gives what each rank says, at this point of the script.

        Returns:
            what was left on rank 0.
        """
        left = (0.0, 0.0)
        if self._may_fire:
            with self._as_it_is():
                left = signal.setitimer(signal.ITIMER_REAL, 0)
            left = self._end_timer(left, agreed)
        now = real(*arguments)
        self._may_fire = sets
        if not left[0]:  # there was none, or its handler may have set another one
            return now
        return left if isinstance(now, tuple) else max(1, int(left[0] + 0.5))  # as Linux rounds it

    def handle_timer(self, real: Callable[..., Any], handler: Any, agreed: Agreed) -> Any:
        """Set the script's handler of the timer, once it is known whether the one before is to run.

        Args:
            real: ``signal.signal``.
            handler: of the script, or a constant of ``signal``.
            agreed: gives what each rank says, at this point of the script.

        Returns:
            the one before.
        """
        if self._may_fire:
            self._end_timer((0.0, 0.0), agreed)
        return self.handle(real, int(signal.SIGALRM), handler)

    def _end_timer(self, left: tuple[float, float], agreed: Agreed) -> tuple[float, float]:
        event = self._event(signal.SIGALRM)
        was_proposed, self._has_fired = self._agreement.has_open_proposal(event), False
        try:
            answers = agreed([was_proposed, left])
            fired = self._has_fired or any(has_fired for has_fired, _ in answers)
        finally:
            self._has_fired = None
        self._timer += 1  # what was proposed until now, nobody heeds any more
        comes_late = self._agreement.has_open_proposal(event) and not was_proposed
        self._agreement.withdraw(event)
        if fired:
            if not was_proposed:
                self._start_anew()
            self._run(signal.SIGALRM, of_script(sys._getframe(1)))
            return 0.0, 0.0
        if comes_late:
            self._agreement.propose(self._event(signal.SIGALRM))
        before, interval = answers[0][1]
        return before, interval

    def _event(self, number: int) -> int:
        """Name a signal for the agreement; one of a timer that was set anew is another one."""
        return number + (self._timer * _NUMBERS if number == _ALARM else 0)

    def _start_anew(self) -> None:
        """The timer of another rank was first: they are one, which starts anew if it repeats."""
        with self._as_it_is():
            _, interval = signal.getitimer(signal.ITIMER_REAL)
            signal.setitimer(signal.ITIMER_REAL, interval, interval)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Surround what this rank asks its user for all: Ctrl-C is meant for the question."""
        self._is_alone += 1
        try:
            yield
        finally:
            self._is_alone -= 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Be the handler of this process."""
        if os.getpid() != self._process or self._is_alone:  # a child of the script's own is no rank
            self._run(number, frame)
        elif number in self._due:
            self._due.remove(number)
            self._run(number, frame)
        elif number == _ALARM or not self._heeded.is_copy(number):
            self._agreement.propose(self._event(number))
            if number == _ALARM and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0):  # not one that ticks
                self._agreement.hold_in_line(frame)

    def _heed(self, event: int, at_point: bool) -> None:
        number = event % _NUMBERS
        if event != self._event(number):
            return  # all ranks have come past the end of this timer
        if number == _ALARM and not self._agreement.count_as_proposed(event):
            self._start_anew()
        if number == _ALARM and at_point and self._has_fired is not None:
            self._has_fired = True
        elif at_point:
            at_next_line(lambda frame: self._run(number, frame))
        elif threading.current_thread() is threading.main_thread():
            self._run(number, None)
        else:
            self._due.append(number)
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _run(self, number: int, frame: FrameType | None) -> None:
        self._runs += 1
        self._tell()
        handler = self._handlers.get(number)
        if handler is not None:
            handler(number, frame)
        elif signal.getsignal(number) == signal.SIG_DFL:  # the script has given it back meanwhile
            signal.raise_signal(number)

    def _tell(self) -> None:
        if os.getpid() == self._process:
            with self._as_it_is():
                self._heeded.write(self._runs, self._handlers, self._ignored)
