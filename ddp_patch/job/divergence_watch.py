"""A thread beside the script that finds out when ranks have parted, within seconds and without a step's time.

It proves, and never guesses from how long something takes: two ranks came to different points as their n-th, a rank
goes on where another has ended, a process is gone or stopped that this one waits for. A rank that computes, loads or
holds the interpreter for an hour is none of that.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time
from collections.abc import Callable, Mapping

from ..errors import LockstepError
from ..ledger import script_line
from ..trail import SLOTS, Trail, count_of
from .agreement import EventAgreement
from .crash import CrashHook
from .disk_stall import DiskStall
from .divergence import Finding, ReportedLocation, compare, message, went
from .launcher import Placement
from .peers import Peers
from .rank_status import RankStatus
from .side_by_side import table
from .whereabouts import Whereabouts

_LOOK = 1.0  # seconds between two looks, each one request to the store
_AT_ONCE = 0.02  # seconds between two looks at memory, while a process is gone or the job ends
_STOPPED_LOOKS = 3
_GONE_WAIT = 0.5  # seconds at one point, for ranks that all leave by os._exit, which they have said
_RAISE_WAIT = 2.0  # seconds, in which the script's thread comes out of a wait of ours
_END_WAIT = 10.0  # seconds, in which a script that got the error ends


class DivergenceWatch:
    """What this rank knows of where all are."""

    def __init__(
        self,
        rank_status: RankStatus,
        crash: CrashHook,
        placement: Placement,
        leave_at_once: Callable[[], object],
        has_queue: bool = False,
    ) -> None:
        """Begin to watch. Every rank comes here together.

        Args:
            rank_status: of this rank.
            crash: shows the error where the script's thread cannot raise it.
            placement: of this rank.
            leave_at_once: ends this process.
            has_queue: its collectives wait on an accelerator, where nobody sees that the script waits for them.
        """
        self.trail = Trail()
        self.trail.parted = self._came_elsewhere
        self.ending: Callable[[], None] = lambda: None  # called every second once the script's thread failed
        self._rank_status = rank_status
        self._crash = crash
        self._rank = placement.rank
        self._size = placement.world_size
        self._leave_at_once = leave_at_once
        self._has_queue = has_queue
        self._peers = Peers(rank_status, self._rank, self.trail)
        who = f"rank {self._rank} of {self._size}"
        self.whereabouts = Whereabouts(self.trail, rank_status, crash, self._rank, self._size)
        self._stuck = DiskStall(crash, who, lambda: script_line(self.whereabouts.frame()))
        self.agreement = EventAgreement(rank_status, self.trail, self._peers.wake)
        self._reported: object = None  # what this rank last told of where it is
        self._seen: object = None  # where it was at the last look
        self._since = self._asked = time.monotonic()  # when it came there; when the store was last asked
        beside = {(self._rank - 1) % self._size, (self._rank + 1) % self._size}
        self._neighbours = sorted(beside - {self._rank, *self.trail.others})  # those of this host are seen anyway
        self._stopped_looks: dict[int, int] = {}
        self._broken_at: float | None = None  # when it got to know that the job cannot go on
        self._failed_at: float | None = None  # when it got to know that another rank failed
        self._is_over = False
        self._process = os.getpid()
        rank_status.places = self.places
        rank_status.speaks = self._peers.speaks
        rank_status.move(self.whereabouts.locate().to_bytes())
        rank_status.post("watch", b"")
        rank_status.wait_until_all_posted("watch")  # all places are there, so that they can be read without waiting
        # Not threading's: the script counts its own threads. It is joined before the interpreter goes, which would
        # end it inside torch's code and so abort the process (CPython 3.11).
        self._running = _thread.allocate_lock()
        self._running.acquire()
        _thread.start_new_thread(self._run, ())

    def wait_for_the_end(self) -> None:
        """Come to the end of the program, and wait for the other ranks to do so for a bounded time."""
        if os.getpid() != self._process:
            return  # a child of the script's own
        self.trail.end()
        self._peers.wake()
        self._rank_status.wait_for_the_end()

    def stop(self) -> None:
        """Watch no more. Safe to call twice."""
        if not self._is_over and os.getpid() == self._process:
            self._is_over = True
            self.agreement.close()
            self._peers.wake()
            if self._running.acquire(timeout=_END_WAIT):
                self._peers.close()
            self.trail.go_private()

    def places(self) -> str:
        """Say where the ranks were last seen, for a message."""
        with contextlib.suppress(RuntimeError):
            return f" When last seen, {went(self.whereabouts.reported())}."
        return ""

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _LOOK
        try:
            while not self._is_over:
                gone = len(self._peers.gone)
                self._peers.wait(pause)
                if not self._is_over:
                    pause = self._look(is_due=len(self._peers.gone) > gone)
        finally:
            self._running.release()

    def _look(self, is_due: bool) -> float:
        if self._crash.is_ending:
            self.ending()
            return _LOOK
        is_mute = self._peers.is_stopped(self._rank_status.holder)  # whoever asks the store waits without end
        if self._rank_status.failure is not None:
            self._failed_at = self._failed_at or time.monotonic()
            if time.monotonic() - self._failed_at > _END_WAIT:
                self._rank_status.end_by_failure()
        if self._rank_status.out_of_step is not None:
            return self._see_to_the_end()
        is_agreeing = False
        with contextlib.suppress(RuntimeError, ValueError):  # the store is gone, or holds what no rank wrote
            is_agreeing = not is_mute and self.agreement.step()
        now = time.monotonic()
        state = self.trail.count, self.trail.depth > 0, self.trail.words[SLOTS]
        if state != self._seen:
            self._seen, self._since = state, now
        finding = self._among_peers()
        self._stuck.look()
        if finding is None and not is_mute and (is_due or now - self._asked > _LOOK - _AT_ONCE):
            self._asked = now
            with contextlib.suppress(RuntimeError):  # the store is gone, and with it the job
                finding = self._through_the_store(state)
        if finding is not None:
            line = "at the end" if self.trail.words[SLOTS] else script_line(self.whereabouts.frame())
            self._declare(finding, line, self.trail.depth > 0)
        is_urgent = is_agreeing or self._rank_status.out_of_step is not None or self._peers.gone
        return _AT_ONCE if is_urgent else _LOOK

    def _through_the_store(self, state: object) -> Finding | None:
        if state != self._reported:
            self._reported = state
            self._rank_status.move(self.whereabouts.locate().to_bytes())
            return None
        local = self.trail.words.tolist()
        for rank, report in zip(self._neighbours, self._rank_status.refresh(self._neighbours), strict=True):
            finding = compare(local, ReportedLocation.from_bytes(report).words, rank, self._rank)
            if finding is not None:
                return finding
        return None

    def _among_peers(self) -> Finding | None:
        local = self.trail.words.tolist()
        for rank, words in self.trail.others.items():
            finding = compare(local, words.tolist(), rank, self._rank)
            if finding is not None:
                return finding
        at_one_place = time.monotonic() - self._since
        still = at_one_place if self.trail.depth or local[SLOTS] else 0.0
        for rank in self._peers.gone:
            its = self.trail.others[rank].tolist()
            words = self._peers.last_words(rank)
            patience = _GONE_WAIT if words and not words.frames else 0.0
            waits = count_of(local) > count_of(its) or still > patience or self._rank_status.lost
            waits = waits or (self._has_queue and at_one_place > _END_WAIT)  # loss.item(), behind a collective
            if waits and not its[SLOTS]:
                return Finding("gone", rank, count_of(local))
        if still > _LOOK:
            stopped = self._peers.stopped()
            self._stopped_looks = {rank: self._stopped_looks.get(rank, 0) + 1 for rank in stopped}
            for rank, looks in self._stopped_looks.items():
                if looks >= _STOPPED_LOOKS:
                    return Finding("stopped", rank, count_of(local))
        return None

    # --- what was found ---------------------------------------------------------------------------------------------

    def _came_elsewhere(self, rank: int) -> Exception:
        """Make the error for the script's thread, which is about to wait at another point than a rank of this host."""
        self._declare(Finding("elsewhere", rank, self.trail.count), script_line(), is_inside=True)
        return self._rank_status.out_of_step_error()

    def _declare(self, finding: Finding, line: str, is_inside: bool) -> None:
        """Tell all ranks, in the same words."""
        location = self.whereabouts.locate(line, is_inside)
        places = {self._rank: location}
        if finding.kind == "stopped" and finding.rank == self._rank_status.holder:
            self._declare_unasked(finding, places, line)
            return
        with contextlib.suppress(RuntimeError):
            self._rank_status.move(location.to_bytes())  # another rank may be finding the same
            places = {**self.whereabouts.sides(finding), **places}
        if finding.kind in ("gone", "stopped"):
            places.update(self.whereabouts.seen_last(finding.rank, places))
        words = self._peers.last_words(finding.rank) if finding.kind == "gone" else None
        said = message(finding, places, line, words)
        if finding.kind in ("elsewhere", "ended"):
            ranks = {rank: place.points() for rank, place in places.items()}
            said = f"{said}\n\n{table(ranks, finding.count)}".rstrip()
        self._rank_status.leave(said)
        if finding.kind == "gone":
            self._say()  # now: the launcher is about to end this rank as well
        if finding.kind == "stopped":
            self._say()
            self._peers.resume(finding.rank)

    def _declare_unasked(self, finding: Finding, places: Mapping[int, ReportedLocation], line: str) -> None:
        """The same where the store is stopped: it has to go on before anybody is told, and this rank must not."""
        self._rank_status.out_of_step = message(
            finding, {**places, **self.whereabouts.seen_last(finding.rank, places)}, line
        )
        self._peers.resume(finding.rank)
        self._rank_status.leave(self._rank_status.out_of_step)
        self._say()

    # --- the end of a job that cannot go on -------------------------------------------------------------------------

    def _see_to_the_end(self) -> float:
        """End this process if its script cannot: waits inside gloo or NCCL do not end by an exception."""
        now = time.monotonic()
        if self._broken_at is None:
            self._broken_at, self._broken_count = now, self.trail.count
        is_stuck = self.trail.depth > 0 and self.trail.count == self._broken_count
        if now - self._broken_at > (_RAISE_WAIT if is_stuck else _END_WAIT):
            self._say()
            self._leave_at_once()
        return _AT_ONCE

    def _say(self) -> None:
        self._crash(LockstepError, LockstepError(self._rank_status.out_of_step), self.whereabouts.traceback())
