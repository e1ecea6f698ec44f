"""One point of the script for all ranks, for what came to one of them from outside, at any time: a signal.

The ranks of a program come to the same points in the same order, but not at the same time. So each says how many it has
come to and waits before the next one until all have said so; the point behind the furthest of them is one that no rank
has come to. Where no rank moves any more, asleep in the same line or waiting for what one of them does for all, it
is where they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty
from types import FrameType

import torch

from ..ledger import is_of_model, script_line
from ..script_thread import Script
from ..trail import NOWHERE, Trail
from .rank_status import RankStatus

_STILL = 1.0  # seconds in one line, after which a rank counts as one that does not move
_SAME = 5.0  # seconds, in which a launcher that tells one rank has told all
_STAND = 1.0  # seconds, in which the other ranks come to stand where this one does
_BETWEEN = tuple(os.path.join(os.path.dirname(file), "") for file in (torch.__file__, os.path.dirname(__file__)))
_LOOK = 0.02  # seconds between two looks of a rank that is held


class Agreement:
    """Finds the point for one thing after the other. The thread of the watch does it; the script's thread comes by."""

    def __init__(self, rank_status: RankStatus, trail: Trail, wake: Callable[[], None]) -> None:
        """Listen for what other ranks ask for.

        Args:
            rank_status: of this rank.
            trail: of this rank.
            wake: has ``step`` called soon, from whichever thread.
        """
        self.heed: Callable[[int, bool], None] = lambda what, at_point: None
        """Does what was asked for: in the script's thread at the point, or else from another one, at once."""
        self._rank_status = rank_status
        self._trail = trail
        self._wake = wake
        self._round = 0
        self._asked: dict[int, int] = {}  # what came to this rank -> how often
        self._done: dict[int, int] = {}  # what all ranks did -> how often
        self._done_at: dict[int, float] = {}
        self._point: int | None = None  # agreed on
        self._what = 0
        self._is_agreeing = False
        self._still: tuple[str, float] = "", 0.0  # where this rank stands, since when
        self._says_still = False
        self._stands = ""  # where the script's thread is kept
        self._tries = 0
        self._is_over = False
        self._one = threading.Lock()  # of the two threads finishes a round
        trail.on_hold = self._hold
        self._listen()

    def ask(self, what: int) -> None:
        """Have all ranks do it once, also where several are told within some seconds. Does not wait.

        Args:
            what: a number, which ``heed`` knows.
        """
        count, done = self._asked.get(what, 0), self._done.get(what, 0)
        if count < done and time.monotonic() - self._done_at[what] > _SAME:
            count = done  # what all have done, this rank was not told of, and will not be
        self._asked[what] = count + 1
        self._wake()

    def was_asked(self, what: int) -> bool:
        """Tell whether this rank was told of what all do now as well; if not, it is not told any more."""
        count, done = self._asked.get(what, 0), self._done.get(what, 0)
        self._asked[what] = max(count, done)
        return count >= done

    def has_asked(self, what: int) -> bool:
        """Tell whether this rank was told of something that not all have done."""
        return self._asked.get(what, 0) > self._done.get(what, 0)

    def forget(self, what: int) -> None:
        """Ask for it no more. The ranks may be about to do it all the same."""
        self._asked.pop(what, None)

    def stand(self, frame: FrameType | None) -> None:
        """Keep the script's thread in its line for a moment: what all ranks were told there, they can do there.

        Args:
            frame: in which the thread is.
        """
        if self._trail.depth or threading.get_ident() != Script.ident or not _is_of_model(frame):
            return
        self._stands, end = _position(frame), time.monotonic() + _STAND
        try:
            while self._stands and time.monotonic() < end:
                time.sleep(_LOOK)
        finally:
            self._stands = ""

    def step(self) -> bool:
        """Go on with what can be done without waiting.

        Returns:
            whether there is more to come soon.

        Raises:
            RuntimeError: if the store is gone.
        """
        if not self._is_agreeing:
            for what, count in list(self._asked.items()):
                if count > self._done.get(what, 0):
                    self._rank_status.propose(self._name("asked"), str(what))
            with contextlib.suppress(Empty):
                answer = self._listening.get_nowait()
                if isinstance(answer, bytes) and answer:
                    self._begin(int(answer))
        elif self._point is None:
            self._settle()
        else:
            self._look_whether_still()
        return self._is_agreeing

    def close(self) -> None:
        """Hold nobody any more."""
        self._is_over = True
        self._trail.hold_at = NOWHERE

    def _listen(self) -> None:
        self._round += 1
        self._listening = self._rank_status.listen(self._name("asked"), self._wake)

    def _name(self, what: str) -> str:
        return f"agreement {self._round}/{what}"

    # --- which point ------------------------------------------------------------------------------------------------

    def _begin(self, what: int) -> None:
        self._what = what
        self._still, self._says_still, self._tries = ("", 0.0), False, 0
        self._trail.hold_at = 0  # before it is read: whoever comes to the next point from now on is held there
        self._rank_status.post(self._name("count"), str(self._trail.count).encode())
        self._is_agreeing = True

    def _settle(self) -> None:
        posted = self._rank_status.posted(self._name("count"))
        if posted is None:
            return
        self._point = max(map(int, posted)) + 1
        self._trail.hold_at = self._point  # now that it is known to whoever is held

    def _hold(self, count: int) -> None:
        """Keep the script's thread at a point until it is known which one it is."""
        while self._trail.hold_at == 0:
            if self._is_over or self._rank_status.out_of_step is not None:
                return
            self._wake()
            time.sleep(_LOOK)
        if self._point is None or count < self._point:
            return
        with self._one, contextlib.suppress(RuntimeError):  # the store is gone, which the script learns at this point
            if self._is_agreeing:
                self._finish(at_point=self._rank_status.propose(self._name("where"), "point") == "point")

    # --- where no rank moves ----------------------------------------------------------------------------------------

    def _look_whether_still(self) -> None:
        with self._one:  # the script's thread may be finishing the round, and what is posted then is of the next one
            if self._is_agreeing and self._says_still:
                self._decide()
            elif self._is_agreeing:
                self._say_whether_still()

    def _say_whether_still(self) -> None:
        place, now = self._place(), time.monotonic()
        if not place or place != self._still[0]:
            self._still = place, now
        if not place:
            self._stands = ""  # the others have gone past it
        elif place == self._stands or now - self._still[1] > _STILL:
            self._says_still = True
            self._rank_status.post(self._name(f"still {self._tries}"), place.encode())

    def _decide(self) -> None:
        stand = self._rank_status.posted(self._name(f"still {self._tries}"))
        if stand is None:
            return
        self._says_still = False
        self._tries += 1
        if len(set(stand)) > 1:
            self._stands = ""
        elif self._rank_status.propose(self._name("where"), "here") == "here":
            self._finish(at_point=False)

    def _place(self) -> str:
        """Name where this rank stands before the point, for itself or for others; nothing if it computes for them."""
        trail = self._trail
        if self._point is None or trail.count != self._point - 1:
            return ""
        if trail.in_turn:
            return "waits at an effect"
        if trail.depth:
            return ""
        return self._stands or script_line(sys._current_frames().get(Script.ident))

    def _finish(self, *, at_point: bool) -> None:
        what, self._is_agreeing, self._point = self._what, False, None
        self._trail.hold_at, self._stands = NOWHERE, ""
        self._done[what] = self._done.get(what, 0) + 1
        self._done_at[what] = time.monotonic()
        self._listen()
        self.heed(what, at_point)


def _is_of_model(frame: FrameType | None) -> bool:
    """Tell what the script or a package calls of Python from what torch and this package are in the middle of."""
    while frame is not None and not is_of_model(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_BETWEEN):
            return False
        frame = frame.f_back
    return frame is not None


def _position(frame: FrameType | None) -> str:
    """Tell one place of the script from all others, whoever called what."""
    places = []
    while frame is not None:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lasti}")
        frame = frame.f_back
    return " < ".join(places)
