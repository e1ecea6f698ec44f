"""What a library gets for its cache: once on each host, rank 0's first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..batch.world import World
from .rank_zero import RankZero

T = TypeVar("T")


class PerHost:
    """Has one rank of each host fill its cache, from which the others take what they need."""

    def __init__(self, rank_zero: RankZero, world: World, local_rank: int, sees_one_disk: bool) -> None:
        """Nothing is asked for yet.

        Args:
            rank_zero: who acts for all ranks.
            world: the ranks.
            local_rank: of this rank among those of its host.
            sees_one_disk: all ranks see the same files.
        """
        self._rank_zero = rank_zero
        self._world = world
        self._is_hosts_first = local_rank == 0 and not sees_one_disk
        self._sees_one_disk = sees_one_disk

    def call(self, what: str, fill: Callable[[], T], take: Callable[[], T]) -> T:
        """Fill the caches of all hosts, and give each rank what is in its own.

        Args:
            what: names it.
            fill: gets what is not there, and gives it.
            take: gives what is there.

        Raises:
            BaseException: on every rank, what rank 0 gets.
            RuntimeError: on every rank, where another host did not get what rank 0 got.
        """
        if not self._rank_zero.in_lockstep():
            return fill()
        got: list[T] = []
        # Who downloads may take any time, and ask whether a source is trusted.
        self._rank_zero.barrier_call(what, lambda: got.append(fill()), broadcast_result=False, is_patient=True)
        with self._rank_zero.alone():
            if not self._sees_one_disk:
                self._fill_others(what, fill, got)
            return got[0] if got else take()

    def _fill_others(self, what: str, fill: Callable[[], T], got: list[T]) -> None:
        said, raised = "", None
        if self._is_hosts_first and not got:
            try:
                got.append(fill())
            except Exception as error:  # noqa: BLE001 — told to all below
                said, raised = f"{type(error).__name__}: {error}", error
        for rank, (error_there,) in enumerate(self._world.share([said])):
            if error_there:
                raise RuntimeError(
                    f"{what} did on rank {rank}, the first of its host, not what it did on rank 0. There it raised "
                    f"{error_there}"
                ) from raised
