"""The ranks of this host, seen without a message: where they are, and whether they live."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..trail import SAID, Trail, local_words, others_words
from . import hosts, last_words
from .held_back import HeldBack
from .last_words import LastWords
from .rank_status import RankStatus

_SAY_WAIT = 3.0  # seconds, in which another rank says why the job ends
_LOOK = 0.02  # seconds between two looks whether it has


class Peers:
    """The other ranks of this host. Where the system cannot tell, there are none."""

    def __init__(self, rank_status: RankStatus, rank: int, trail: Trail) -> None:
        """Share the trail with them. Every rank comes here together.

        Args:
            rank_status: of this rank.
            rank: of this process.
            trail: of this rank.
        """
        self.gone: set[int] = set()
        self._rank = rank
        self._trail = trail
        self._pids: dict[int, int] = {}
        self._handles: dict[int, int] = {}  # descriptor of the process -> rank
        self._words: dict[int, int] = {}  # rank -> descriptor of its last words
        self._poll = select.poll()
        self._waking, self._wakes = os.pipe()
        self._poll.register(self._waking, select.POLLIN)
        self._descriptors = [self._waking, self._wakes]
        self._closing = threading.RLock()  # a signal may come to a thread that holds it, and have it call ``wake``
        self._held_back = HeldBack()
        memory = os.memfd_create("ddp_patch") if hasattr(os, "memfd_create") else None
        if memory is not None:
            trail.words = local_words(memory)
            self._descriptors.append(memory)
        name, words = "where the ranks run", last_words.descriptor(rank)
        rank_status.post(name, json.dumps([hosts.host(), os.getpid(), memory, words]).encode())
        reports = [json.loads(text) for text in rank_status.wait_until_all_posted(name)]
        for other, (host, pid, *descriptors) in enumerate(reports):
            if other != rank and None not in descriptors and host == reports[rank][0]:
                self._meet(other, pid, descriptors, trail)

    def wait(self, seconds: float) -> None:
        """Wait for a time, until one of them is gone, or until woken."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._waking:
                os.read(self._waking, 64)
                continue
            self._poll.unregister(descriptor)
            self.gone.add(self._handles[descriptor])
            self._held_back.begin()
        self._held_back.look()

    def wake(self) -> None:
        """End the wait. Safe from any thread, and when nobody waits any more."""
        with self._closing:
            if self._descriptors:
                os.write(self._wakes, b"\0")

    def close(self) -> None:
        """Let their descriptors go, when nobody waits any more."""
        self._held_back.end()
        with self._closing:  # the system gives their numbers to other files
            descriptors, self._descriptors = [*self._descriptors, *self._handles, *self._words.values()], []
            self._words.clear()
        for descriptor in descriptors:
            os.close(descriptor)

    def stopped(self) -> list[int]:
        """Find those that a signal has stopped. One that a debugger holds is in another state."""
        return [rank for rank in self._pids if self.is_stopped(rank)]

    def is_stopped(self, rank: int | None) -> bool:
        """Tell whether a signal has stopped one of them."""
        return rank in self._pids and rank not in self.gone and self._state(rank) == "T"

    def resume(self, rank: int) -> None:
        """Let a stopped one go on, since it cannot end otherwise."""
        for descriptor, other in self._handles.items():
            if other == rank and rank not in self.gone:
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)

    def last_words(self, rank: int) -> LastWords | None:
        """Read what one that is gone has left."""
        with self._closing:
            return last_words.read(self._words[rank]) if rank in self._words else None

    def speaks(self) -> bool:
        """Tell whether this rank is to say why the job ends, without the store: the first of this host that lives."""
        end = time.monotonic() + _SAY_WAIT
        before = [handle for handle, rank in self._handles.items() if self._descriptors and rank < self._rank]
        while not any(words[SAID] for words in (self._trail.words, *self._trail.others.values())):
            if time.monotonic() > end or not any(_lives(handle) for handle in before):
                self._trail.words[SAID] = 1
                return True
            time.sleep(_LOOK)
        return False

    def _meet(self, rank: int, pid: int, descriptors: Sequence[int], trail: Trail) -> None:
        try:
            handle = os.pidfd_open(pid)
            memory, self._words[rank] = (os.open(f"/proc/{pid}/fd/{its}", os.O_RDONLY) for its in descriptors)
        except OSError:  # an older kernel, or a process that does not let itself be looked into
            return
        trail.see({**trail.others, rank: others_words(memory)})
        os.close(memory)
        self._pids[rank] = pid
        self._handles[handle] = rank
        self._poll.register(handle, select.POLLIN)

    def _state(self, rank: int) -> str:
        try:
            stat = Path(f"/proc/{self._pids[rank]}/stat").read_text()
        except OSError:
            return ""
        return stat.rpartition(")")[2].split()[0]


def _lives(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return not poll.poll(0)
