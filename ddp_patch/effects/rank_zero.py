"""All ranks come to an outward effect, rank 0 acts, all get what it got.

Told through the job's store, not by collectives: ranks that are elsewhere are found out, not waited for in a wrong one.
What changes what ranks read (``barrier_call``) happens when every rank has come to it, so that whatever a rank reads
between two effects is what one process would read.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..batch.world import World
from ..errors import TrustError
from ..job.divergence import ADVICE
from ..job.rank_status import RankStatus
from ..ledger import script_line
from .lockstep import Lockstep
from .points import EffectPoint

_sessions = itertools.count(1)
_MOST_CALLS = 128  # after which the ranks are waited for, and the answers dropped from the store


class RankZero(Lockstep):
    """Takes the ranks through their outward effects, one after the other."""

    def __init__(self, rank_status: RankStatus, world: World) -> None:
        """Begin with the first.

        Args:
            rank_status: of this rank.
            world: the ranks.
        """
        super().__init__(world)
        self.renamed: Callable[[Sequence[str], Sequence[str]], None] = lambda local, leaders: None
        self.note_output: Callable[[str, Any], None] | None = None
        """Told how something leaves the program where all ranks are in step, and what: "saved", "written", ..."""
        self._rank_status = rank_status
        self._session = next(_sessions)  # the store keeps the last answers of a session that ended
        self._count = 0
        self._barriers = 0  # to which all ranks have come
        self._calls = 0  # since, for which nobody waited
        self._spent: list[str] = []  # entries of the store that all ranks have read once they come to the next meeting
        self.pending: OSError | None = None  # met where the ranks are not in step; all raise it at their next effect

    def barrier_call(
        self,
        what: str,
        action: Callable[[], Any],
        paths: Sequence[str] = (),
        *,
        broadcast_result: bool = True,
        is_patient: bool = False,
    ) -> Any:
        """Wait until all ranks have come, and have rank 0 act.

        Args:
            what: names the effect, alike on every rank.
            action: of rank 0.
            paths: that it is about; where the ranks have different ones, rank 0's count, and ``renamed`` is told.
            broadcast_result: give the other ranks what it returns, which has to survive pickling; else they get None.
            is_patient: it may take any time, since it asks a person.

        Raises:
            LockstepError: on every rank, when they came to different effects.
            BaseException: on every rank, what the action raised.
        """
        with self._at(what, paths) as name:
            self._meet(name, what, paths)
            return self._act_or_get(name, what, action, paths, broadcast_result, is_patient)

    def call(
        self, what: str, action: Callable[[], Any], paths: Sequence[str] = (), *, broadcast_result: bool = True
    ) -> Any:
        """Have rank 0 act as soon as it comes, where nothing depends on the others having come, and these wait for it.

        Args:
            what: names the effect, alike on every rank.
            action: of rank 0.
            paths: as for ``barrier_call``.
            broadcast_result: as for ``barrier_call``.

        Raises:
            LockstepError: when a rank came to something else.
            BaseException: on every rank, what the action raised.
        """
        with self._at(what, paths) as name:
            self._calls += 1
            if self._calls > _MOST_CALLS:
                self._meet(name, what, paths)
            return self._act_or_get(name, what, action, paths, broadcast_result)

    def raise_pending(self) -> None:
        """Raise what happened to a file that was written to before.

        Raises:
            OSError: what one process would have got then.
        """
        error, self.pending = self.pending, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or this frame would hold it, and so the script's frames

    @contextmanager
    def _at(self, what: str, paths: Sequence[str]) -> Iterator[str]:
        self._world.check()
        if self._world.observation is not None:
            self._world.observation.note_side_effect(what)
        self._count += 1
        name = f"effect {self._count} of session {self._session}"
        trail = self._world.trail
        trail.detail = paths
        counts = trail.enter(what)
        trail.in_turn = counts
        pace = self._world.ledger.pace
        began = pace.begin()
        try:
            yield name
        finally:
            pace.end("effects", began)
            trail.in_turn = False
            trail.detail = ()
            if counts:
                trail.leave()

    def _meet(self, name: str, what: str, paths: Sequence[str]) -> None:
        """Come to an effect; rank 0 waits for all and looks whether it is the same one."""
        self._barriers += 1
        self._calls = 0
        point = self._here(what, paths)
        if not self.is_leader:
            packed = self._world.seal.pack(f"{name} of rank {self._world.rank}", dataclasses.astuple(point))
            self._rank_status.put(self._place_of(self._world.rank), packed)
            others = self._world.size - 1
            self._rank_status.come(f"session {self._session}", others * self._barriers, f"{name}/all")
            return
        self._rank_status.wait_until_put(f"{name}/all", what)
        texts = self._rank_status.read([self._place_of(rank) for rank in range(1, self._world.size)])
        for rank, text in enumerate(texts, 1):
            other = EffectPoint(*self._read(f"{name} of rank {rank}", text))
            if not point.matches(other):
                self._part(point.unlike(other, rank))
        self._rank_status.drop(self._spent)
        self._spent = [f"{name}/all"]

    def _here(self, what: str, paths: Sequence[str]) -> EffectPoint:
        return EffectPoint.here(what, self._world.trail.count, paths)

    def _place_of(self, rank: int) -> str:
        """Where a rank tells which effect it came to, in place of the one before."""
        return f"effect of rank {rank} in session {self._session}"

    def _act_or_get(
        self,
        name: str,
        what: str,
        action: Callable[[], Any],
        paths: Sequence[str],
        broadcast_result: bool,
        is_patient: bool = False,
    ) -> Any:
        if self.is_leader:
            return self._act(name, what, action, paths, broadcast_result)
        return self._answer(name, what, paths, is_patient)

    def _act(
        self, name: str, what: str, action: Callable[[], Any], paths: Sequence[str], broadcast_result: bool
    ) -> Any:
        came = dataclasses.astuple(self._here(what, paths))
        try:
            self.raise_pending()
            with self.alone():
                result = action()
            answer = self._world.seal.pack(name, (came, True, result if broadcast_result else None))
        except BaseException as error:
            form = self._world.seal.portable_error(name, error)
            self._tell(name, self._world.seal.pack(name, (came, False, form)))
            is_refused = isinstance(form, TrustError) and not isinstance(error, TrustError)
            if not is_refused:
                del form  # see raise_pending
                raise
            raise form from error
        self._tell(name, answer)
        return result

    def _tell(self, name: str, answer: bytes) -> None:
        self._rank_status.put(f"{name}/answer", answer)
        self._spent.append(f"{name}/answer")

    def _answer(self, name: str, what: str, paths: Sequence[str], is_patient: bool) -> Any:
        packed = self._rank_status.wait_until_put(f"{name}/answer", what, is_patient=is_patient)
        came, is_good, result = self._read(name, packed)
        leaders, local = EffectPoint(*came), self._here(what, paths)
        if not leaders.matches(local):
            self._part(leaders.unlike(local, self._world.rank))
        if paths:
            self.renamed(paths, leaders.paths)
        if not is_good:
            try:
                raise result
            finally:
                del result  # see raise_pending
        return result

    def _read(self, name: str, packed: bytes) -> Any:
        try:
            return self._world.seal.unpack(name, packed)
        except TrustError as error:
            self._rank_status.leave(str(error))  # nobody shall wait for this rank
            raise

    def _part(self, what: str) -> None:
        raise self._rank_status.refuse(f"{script_line()}: {what}, {ADVICE['elsewhere']}")
