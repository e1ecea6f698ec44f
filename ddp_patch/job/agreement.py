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
_SAME_EVENT = 5.0  # seconds, in which a launcher that tells one rank has told all
_IN_LINE = 1.0  # seconds, in which the other ranks come to stand where this one does
_BETWEEN = tuple(os.path.join(os.path.dirname(file), "") for file in (torch.__file__, os.path.dirname(__file__)))
_LOOK = 0.02  # seconds between two looks of a rank that is held


class EventAgreement:
    """Has all ranks handle an event of one of them, one after the other: agreed on are the event, and where they do.

    Ranks propose events, and the first proposal of a round wins. They send each other how many points they have come
    to, and vote for the line where they stand still. The thread of the watch does it; the script's thread comes by.
    """

    def __init__(self, rank_status: RankStatus, trail: Trail, wake: Callable[[], None]) -> None:
        """Listen for what other ranks propose.

        Args:
            rank_status: of this rank.
            trail: of this rank.
            wake: has ``step`` called soon, from whichever thread.
        """
        self.on_agreed: Callable[[int, bool], None] = lambda event, at_point: None
        """Handles the event: in the script's thread at the point, or else from another one, at once."""
        self._rank_status = rank_status
        self._trail = trail
        self._wake = wake
        self._round = 0
        self._proposed: dict[int, int] = {}  # event -> how often it came to this rank
        self._handled: dict[int, int] = {}  # event -> how often all ranks handled it
        self._handled_at: dict[int, float] = {}
        self._point: int | None = None  # agreed on
        self._event = 0  # that the ranks are agreeing on
        self._is_agreeing = False
        self._place_since: tuple[str, float] = "", 0.0  # where this rank stands, since when
        self._has_voted = False  # for the place where it stands
        self._held_in = ""  # the line in which the script's thread is kept
        self._votes = 0  # of all ranks on where they stand, in this round
        self._is_over = False
        self._finishing = threading.Lock()  # one of the two threads finishes a round
        trail.on_hold = self._hold_at_point
        self._open_round()

    def propose(self, event: int) -> None:
        """Have all ranks handle it once, also where it comes to several within some seconds. Does not wait.

        Args:
            event: a number, which ``on_agreed`` knows.
        """
        count, handled = self._proposed.get(event, 0), self._handled.get(event, 0)
        if count < handled and time.monotonic() - self._handled_at[event] > _SAME_EVENT:
            count = handled  # what all have handled did not come to this rank, and will not
        self._proposed[event] = count + 1
        self._wake()

    def count_as_proposed(self, event: int) -> bool:
        """Count an event that all handle now as proposed by this rank too, and tell whether it had been."""
        count, handled = self._proposed.get(event, 0), self._handled.get(event, 0)
        self._proposed[event] = max(count, handled)
        return count >= handled

    def has_open_proposal(self, event: int) -> bool:
        """Tell whether an event came to this rank that not all have handled."""
        return self._proposed.get(event, 0) > self._handled.get(event, 0)

    def withdraw(self, event: int) -> None:
        """Propose it no more. The ranks may be about to handle it all the same."""
        self._proposed.pop(event, None)

    def hold_in_line(self, frame: FrameType | None) -> None:
        """Keep the script's thread in its line for a moment: what came to all ranks there, they can handle there.

        Args:
            frame: in which the thread is.
        """
        if self._trail.depth or threading.get_ident() != Script.ident or not _is_of_model(frame):
            return
        self._held_in, end = _position(frame), time.monotonic() + _IN_LINE
        try:
            while self._held_in and time.monotonic() < end:
                time.sleep(_LOOK)
        finally:
            self._held_in = ""

    def step(self) -> bool:
        """Go on with what can be done without waiting.

        Returns:
            whether there is more to come soon.

        Raises:
            RuntimeError: if the store is gone.
        """
        if not self._is_agreeing:
            for event, count in list(self._proposed.items()):
                if count > self._handled.get(event, 0):
                    self._rank_status.propose(self._name("proposal"), str(event))
            with contextlib.suppress(Empty):
                answer = self._winning_proposal.get_nowait()
                if isinstance(answer, bytes) and answer:
                    self._begin_agreeing(int(answer))
        elif self._point is None:
            self._choose_point()
        else:
            self._vote_on_place()
        return self._is_agreeing

    def close(self) -> None:
        """Hold nobody any more."""
        self._is_over = True
        self._trail.hold_at = NOWHERE

    def _open_round(self) -> None:
        self._round += 1
        self._winning_proposal = self._rank_status.listen(self._name("proposal"), self._wake)

    def _name(self, entry: str) -> str:
        return f"agreement {self._round}/{entry}"

    # --- which point ------------------------------------------------------------------------------------------------

    def _begin_agreeing(self, event: int) -> None:
        self._event = event
        self._place_since, self._has_voted, self._votes = ("", 0.0), False, 0
        self._trail.hold_at = 0  # before it is read: whoever comes to the next point from now on is held there
        self._rank_status.post(self._name("points"), str(self._trail.count).encode())
        self._is_agreeing = True

    def _choose_point(self) -> None:
        posted = self._rank_status.posted(self._name("points"))
        if posted is None:
            return
        self._point = max(map(int, posted)) + 1
        self._trail.hold_at = self._point  # now that it is known to whoever is held

    def _hold_at_point(self, count: int) -> None:
        """Keep the script's thread at a point until it is known which one it is."""
        while self._trail.hold_at == 0:
            if self._is_over or self._rank_status.out_of_step is not None:
                return
            self._wake()
            time.sleep(_LOOK)
        if self._point is None or count < self._point:
            return
        with self._finishing, contextlib.suppress(RuntimeError):  # the store is gone: the script learns it here
            if self._is_agreeing:
                self._finish(at_point=self._rank_status.propose(self._name("where"), "point") == "point")

    # --- where no rank moves ----------------------------------------------------------------------------------------

    def _vote_on_place(self) -> None:
        with self._finishing:  # else the script's thread may end the round, and what is posted then is of the next one
            if self._is_agreeing and self._has_voted:
                self._count_votes()
            elif self._is_agreeing:
                self._vote_if_still()

    def _vote_if_still(self) -> None:
        place, now = self._place(), time.monotonic()
        if not place or place != self._place_since[0]:
            self._place_since = place, now
        if not place:
            self._held_in = ""  # the others have gone past it
        elif place == self._held_in or now - self._place_since[1] > _STILL:
            self._has_voted = True
            self._rank_status.post(self._name(f"place {self._votes}"), place.encode())

    def _count_votes(self) -> None:
        places = self._rank_status.posted(self._name(f"place {self._votes}"))
        if places is None:
            return
        self._has_voted = False
        self._votes += 1
        if len(set(places)) > 1:
            self._held_in = ""
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
        return self._held_in or script_line(sys._current_frames().get(Script.ident))

    def _finish(self, *, at_point: bool) -> None:
        event, self._is_agreeing, self._point = self._event, False, None
        self._trail.hold_at, self._held_in = NOWHERE, ""
        self._handled[event] = self._handled.get(event, 0) + 1
        self._handled_at[event] = time.monotonic()
        self._open_round()
        self.on_agreed(event, at_point)


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
