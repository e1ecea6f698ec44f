"""Which ranks are where, told through the job's store and so without a collective: failures, and the end."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch.distributed import DistError

from ..errors import LockstepError
from ..ledger import script_line
from .job_store import JobStore
from .store_waits import Waiting

_EXIT_WAIT = 30.0  # seconds
_FAILURE_WAIT = 3.0  # seconds, in which ranks that fail at the same point do so
_LEADER_WAIT = 0.5  # seconds, in which rank 0 comes to the error that another rank met
_REASON_WAIT = 3.0  # seconds, in which it is found out why a connection was lost
_HEARD_WAIT = 5.0  # seconds, in which ranks that wait for this one hear why it ends
_LOOK = 0.05  # seconds between two looks whether they have
# The person at the debugger ends the program; torch has computed again what a backward wants (2.13).
_NO_FAILURES = ("BdbQuit", "_StopRecomputationError")
_MEMORY = (MemoryError, torch.OutOfMemoryError)
_MOST_WORDS = 2**20  # that are told of an error: the store takes 8 MiB as one value
_FAILED = "\x01"  # before the words of a rank that ends by itself
_ADVICE = "Leave such rows out of the dataset."


class RankStatus(JobStore):
    """What this rank tells the others while they may be elsewhere in the script."""

    def __init__(self, rank: int, world_size: int, timeout: float, holder: int | None = None) -> None:
        """Connect to the store that the launcher made.

        Args:
            rank: of this process.
            world_size: of the job.
            timeout: seconds to wait for ranks that are sure to come.
            holder: the rank whose process holds the store, if one does.
        """
        self.holder = holder
        self.out_of_step: str | None = None  # why this rank cannot go on with the others
        self.failure: str | None = None  # of another rank, which ends
        self._is_known = False  # why no rank can go on, to those that asked while the store was there
        self.is_raised = False  # the script got an error that says so
        self.fails_alike = False  # as rank 0, at the same time
        self.lost = False  # a connection to another rank
        self.places: Callable[[], str] = lambda: ""  # where the ranks are, for messages
        self.speaks: Callable[[], bool] = lambda: True  # this rank is to say why the job ends, where the store is gone
        self._timeout = timeout
        super().__init__(rank, world_size, timedelta(seconds=_EXIT_WAIT), lambda: self.out_of_step is not None)
        self._store.compare_set(self._key("out_of_step"), "", "")  # there, so that it can be read along with others

    def check_all_failed(self, error: Exception, where: str, advice: str = _ADVICE) -> None:
        """Check that every rank failed at this point, so that a script that catches the error goes on in step.

        Without a collective: the ranks that did not fail are elsewhere.

        Args:
            error: that this rank met.
            where: the same on every rank, and for this point alone.
            advice: ends the message.

        Raises:
            LockstepError: if this rank failed and others did not.
        """
        if is_lost_connection(error):
            return  # another rank is gone: it says why, or whoever ended it does
        if type(error).__name__ in _NO_FAILURES:
            return
        name = f"failure/{where}"
        try:
            if self._wait_until_all_came(name, _FAILURE_WAIT):
                self.drop_once(name, [name, f"{name}/all"])
                return
        except RuntimeError:  # the store is gone, and with it the job
            return
        if isinstance(error, LockstepError):
            self.leave(str(error))  # it says why itself
            return
        self.leave(
            f"{script_line()}: {where} raised {type(error).__name__} ({error}) for the rows of rank "
            f"{self._rank} and not for those of all ranks, so that a script that catches it would go on "
            f"out of step. {'Make batches smaller.' if isinstance(error, _MEMORY) else advice}"
        )
        raise self.out_of_step_error() from error

    def wait_until_put(self, name: str, point: str, *, is_patient: bool = False) -> bytes:
        """Give what another rank puts under a name.

        Args:
            name: to wait for.
            point: of the script, for the message.
            is_patient: wait without end, for a person.

        Raises:
            LockstepError: if it does not come.
        """
        value = self._waiting.get(self._key(name), math.inf if is_patient else self._timeout)
        if value is None:
            if self.out_of_step is not None:  # this rank's watch asks the others
                raise self.out_of_step_error()
            raise self.explained(LockstepError(f"{script_line()}: not all ranks came to {point}.{self.places()}"))
        return self.whole(name, value)

    def leave(self, why: str) -> str:
        """Tell every rank that this one cannot go on with the others.

        Returns:
            what all ranks say: the words of the first that told.
        """
        self.out_of_step = self._tell(why)
        return self.out_of_step

    def fail(self, why: str) -> None:
        """Tell the other ranks that this one failed, and ends by itself.

        They may be behind it, and still say what one process says before it fails: what they know is ``failure``.
        """
        self._tell(_FAILED + why)

    def _tell(self, why: str) -> str:
        why = why[:_MOST_WORDS]
        try:
            why = self._store.compare_set(self._key("out_of_step"), "", why).decode()
            self._store.set(self._key("parted"), "1")
            self._know()
        except RuntimeError:  # the store is gone, with a rank that has said why
            why = self.failure or why
        return why.removeprefix(_FAILED)

    def _know(self) -> None:
        if not self._is_known:
            self._is_known = True
            self.come("heard", self._world_size, "heard/all")

    def wait_until_heard(self) -> None:
        """Stay until every rank knows why this one ends, for a bounded time, if the store goes with it."""
        if self._is_known and self._rank == self.holder:
            with contextlib.suppress(RuntimeError), contextlib.closing(Waiting(self._store)) as waiting:
                waiting.get(self._key("heard/all"), _HEARD_WAIT)  # this rank's own waits are over

    def end_by_failure(self) -> None:
        """Do not go on without a rank that failed, if one did."""
        if self.out_of_step is None:
            self.out_of_step = self.failure

    def refuse(self, why: str) -> Exception:
        """Tell every rank why this one cannot go on, and give the error to raise."""
        self.leave(why)
        return self.out_of_step_error()

    def out_of_step_error(self) -> LockstepError:
        """Give the script the error that says why this rank cannot go on."""
        self.is_raised = True
        return LockstepError(self.out_of_step)

    def refresh(self, ranks: Sequence[int]) -> list[bytes]:
        """Learn whether some rank told why it cannot go on, and give where ranks are. One request, and no waiting.

        Raises:
            RuntimeError: if the store is gone.
        """
        why, *places = self._store.multi_get(
            [self._key("out_of_step"), *(self._key(f"place/{rank}") for rank in ranks)]
        )
        if why and self.out_of_step is None:
            self._know()
            words = why.decode()
            if words.startswith(_FAILED):
                self.failure = words.removeprefix(_FAILED)
            else:
                self.out_of_step = words
        return places

    def wait_until_all_posted(self, name: str) -> list[bytes]:
        """Give what every rank has posted under a name: entry r is what rank r did.

        Raises:
            LockstepError: if some rank does not come.
        """
        self.wait_until_put(f"{name}/all", name)
        return self._read_once(name)

    def explained(self, error: RuntimeError) -> Exception:
        """Give the reason why a collective failed, if some rank told it; the error itself otherwise."""
        is_lost = self.lost = is_lost_connection(error)
        try:
            if is_lost:
                self._waiting.get(self._key("parted"), _REASON_WAIT)
            self.refresh([])
        except RuntimeError:  # the store is gone with the rank that held it; those of its host see that in a moment
            end = time.monotonic() + _LEADER_WAIT
            while self.out_of_step is None and self.failure is None and time.monotonic() < end:
                time.sleep(_LOOK)
        self.end_by_failure()
        if self.out_of_step is None and is_lost:
            self.leave(f"{script_line()}: the connection to another rank was lost: {error}{self.places()}")
        return error if self.out_of_step is None else self.out_of_step_error()

    def cause(self, error: BaseException) -> BaseException:
        """Give the reason of an error that a request met as the store went, and any other as it is."""
        if isinstance(error, DistError):
            try:
                self.refresh([])  # or it was met at a store of the script's own
            except RuntimeError:
                return self.explained(error)
        return error

    def claim_first_failure(self, error: str) -> bool:
        """Claim to be the rank that says so: the first, or rank 0 where it fails alike at the same time."""
        error = error[:_MOST_WORDS]
        try:
            leaders = self._key("failure of rank 0")
            if self._rank == 0:
                self._store.set(leaders, error)
            # All say the same once they know why: nobody is waited for, since the launcher may end this rank next.
            elif self.out_of_step is None and self._waiting.get(leaders, _LEADER_WAIT) == error.encode():
                self.fails_alike = True
                return False
            return bool(self._store.add(self._key("failed"), 1) == 1)
        except RuntimeError:  # the store went with the process that held it: nobody else will speak, or all have
            return not self._is_known and self.speaks()

    def wait_for_the_end(self) -> None:
        """Wait until every rank has come to its end, for a bounded time.

        A rank that leaves with a non-zero exit code has the launcher end the others, whatever they still write.
        """
        try:
            if not self._wait_until_all_came("done", _EXIT_WAIT):
                self.refresh([])  # who failed meanwhile has said so
                self.end_by_failure()
                return
        except RuntimeError as error:  # the store went with a rank that failed or was killed
            self.explained(error)
            return
        with contextlib.suppress(RuntimeError):  # there is nobody to wait for
            # The store may live in rank 0: it must be the last to go.
            self._wait_until_all_came("left", _EXIT_WAIT if self._rank == 0 else 0.0)


def is_lost_connection(error: Exception) -> bool:
    """Tell whether a collective failed because of its connections: gloo names its source file."""
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))
