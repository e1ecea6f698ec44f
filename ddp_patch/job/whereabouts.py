"""Where the ranks are, as this one knows it: its own place, what the others have told, what memory shows of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import FrameType, TracebackType

from ..ledger import script_line
from ..script_thread import Script
from ..trail import SLOTS, Trail, count_of
from .crash import CrashHook
from .divergence import Finding, ReportedLocation
from .rank_status import RankStatus

_RECENT = 8  # points that are told
_SIDES_WAIT = 2.5  # seconds, in which other ranks say where they are
_PAUSE = 0.1  # seconds between two looks


class Whereabouts:
    """The places of all ranks."""

    def __init__(self, trail: Trail, rank_status: RankStatus, crash: CrashHook, rank: int, size: int) -> None:
        """Know nothing yet.

        Args:
            trail: of this rank.
            rank_status: keeps what ranks tell.
            crash: has the frame that failed, once one did.
            rank: of this process.
            size: how many ranks there are.
        """
        self.end = "of the program"  # how the program ends, if it does now
        self._trail = trail
        self._rank_status = rank_status
        self._crash = crash
        self._rank = rank
        self._size = size

    def locate(self, line: str | None = None, is_inside: bool | None = None) -> ReportedLocation:
        """Tell where this rank is.

        Args:
            line: of the script, if it is known.
            is_inside: a meeting; by default, as the trail says.
        """
        trail = self._trail
        has_ended = bool(trail.words[SLOTS])
        shown = f"({', '.join(map(repr, trail.detail))})" if trail.detail else ""
        return ReportedLocation(
            trail.words.tolist(),
            f"{trail.recent(1)[0]}{shown}",
            script_line(self.frame()) if line is None else line,
            trail.depth > 0 if is_inside is None else is_inside,
            self.end if has_ended else None,
            trail.recent(_RECENT),
        )

    def reported(self) -> dict[int, ReportedLocation]:
        """Give what each rank has told last. One request to the store."""
        return {
            rank: ReportedLocation.from_bytes(report)
            for rank, report in enumerate(self._rank_status.refresh(range(self._size)))
        }

    def sides(self, finding: Finding) -> dict[int, ReportedLocation]:
        """Give what ranks have told once those that can have come to where they parted, or after a while."""
        end = time.monotonic() + (0.0 if finding.kind == "gone" else _SIDES_WAIT)
        while True:
            places = self.reported()
            mute = {finding.rank} if finding.kind in ("gone", "stopped") else set()
            late = [
                rank
                for rank, place in places.items()
                if place.count < finding.count and place.end is None and rank not in {*mute, self._rank}
            ]
            if not late or self._rank_status.out_of_step is not None or time.monotonic() > end:
                return places
            time.sleep(_PAUSE)

    def seen_last(self, rank: int, places: Mapping[int, ReportedLocation]) -> dict[int, ReportedLocation]:
        """Where a rank of this host came after it had last told where it is."""
        words = self._trail.others[rank].tolist()
        if rank in places and places[rank].count >= count_of(words):
            return {}
        return {rank: ReportedLocation(words, self._trail.last_of(words), "", is_inside=False)}

    def frame(self) -> FrameType | None:
        """Give the frame that failed, or that the script's thread is in."""
        return self._crash.frame or sys._current_frames().get(Script.ident)

    def traceback(self) -> TracebackType | None:
        """Show where the script's thread is as if it had raised there."""
        shown, frame = None, self.frame()
        while frame is not None:
            shown = TracebackType(shown, frame, max(frame.f_lasti, 0), frame.f_lineno)
            frame = frame.f_back
        return shown
