"""Connecting the ranks with each other: when one cannot, all say which and why, and none waits for it.

gloo and NCCL connect inside torch, where a rank waits for another until the time-out; what the other one met, it leaves
in the job's store.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from ..errors import LaunchError
from . import attempt
from .launcher import LaunchInfo
from .rank_status import is_lost_connection
from .siblings import Siblings
from .store_waits import Waiting

_ERROR_WAIT = 2.0  # seconds, in which this rank may come to an error of its own
_END_WAIT = 5.0  # seconds, in which the thread ends that listens
_LOOK = 1.0  # seconds between two looks whether all ranks of this host are there
_TELL_WAIT = 1.0  # seconds, in which the others read what this rank left, where the store is its own
_DEVICES_WAIT = 60.0  # seconds, in which devices connect: NCCL has no time-out for packets that nobody answers


class Joining:
    """Around what connects this rank; every rank comes here."""

    def __init__(self, store: Any, info: LaunchInfo) -> None:
        """Begin to listen.

        Args:
            store: of the job.
            info: from the launcher.
        """
        self._store, self._info = store, info
        self._keys = [f"ddp_patch/unreached/{attempt.name()}/{rank}" for rank in range(info.world_size)]
        self._waiting = Waiting(store)
        self._is_over = False
        self._heard = ""  # what another rank met, before this one did
        self._end = math.inf  # when this rank has waited long enough
        self._running = _thread.allocate_lock()  # not threading's: the script counts its own threads

    def __enter__(self) -> Joining:
        """Listen for what the others meet."""
        self._running.acquire()
        # Asked here: who leaves at once ends what was asked.
        _thread.start_new_thread(self._listen, (self._waiting.ask(self._keys[self._info.rank]),))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Tell the others what this rank met.

        Raises:
            LaunchError: where the connection failed.
        """
        self._is_over = True
        explained = self._explained(error) if isinstance(error, RuntimeError) and is_lost_connection(error) else None
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it the job
            if error is not None:
                raised = f"{type(error).__name__}: {error}"
                said = f"Rank {self._info.rank} of {self._info.world_size} met {raised}"
                words = str(explained) if explained else said
                for rank, key in enumerate(self._keys):
                    if rank != self._info.rank:
                        self._store.set(key, words)
                if self._info.rank == 0:
                    time.sleep(_TELL_WAIT)
            self._waiting.close()
            self._running.acquire(timeout=_END_WAIT)
            self._store.delete_key(self._keys[self._info.rank])
        if explained is not None:
            raise explained from error

    def by_devices(self, device: torch.device, groups: Sequence[dist.ProcessGroup]) -> None:
        """Have devices connect now, where a rank that does not reach another is told; NCCL would in a backward.

        Args:
            device: of this rank.
            groups: of all ranks, by whose backends devices talk.
        """
        self._end = time.monotonic() + _DEVICES_WAIT
        for group in groups:
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        torch.accelerator.synchronize(device)
        self._end = math.inf

    def _listen(self, found: SimpleQueue[Any]) -> None:
        try:
            words = self._next(found)
            if isinstance(words, RuntimeError):  # the store is gone: whoever had it says why
                return
            self._heard = words.decode()
            end = time.monotonic() + _ERROR_WAIT
            while self._heard and not self._is_over and time.monotonic() < end:
                time.sleep(_ERROR_WAIT / 20)
            if self._heard and not self._is_over:
                error = f"{LaunchError.__module__}.{LaunchError.__qualname__}"
                sys.stderr.write(f"{error}: {self._heard}\n")
                sys.stderr.flush()
                os._exit(1)  # the script's thread is inside torch
        finally:
            self._running.release()

    def _next(self, found: SimpleQueue[Any]) -> Any:
        """Wait for what another rank met, or that one of this host is gone, which leaves no words."""
        siblings = Siblings(self._info)
        while True:
            with contextlib.suppress(Empty):
                return found.get(timeout=_LOOK)
            if siblings.has_lost_one():
                return str(siblings.refusal("within ddp_patch.enable()")).encode()
            if time.monotonic() > self._end:
                return str(self._unreached(f"their devices did not connect within {_DEVICES_WAIT:.0f} s")).encode()

    def _explained(self, error: RuntimeError) -> LaunchError:
        return LaunchError(self._heard) if self._heard else self._unreached(str(error).partition("\n")[0])

    def _unreached(self, why: str) -> LaunchError:
        names = [name for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if os.environ.get(name)]
        over = ", ".join(f"{name}={os.environ[name]}" for name in names) or "the interface of its host name"
        return LaunchError(
            f"Rank {self._info.rank} of {self._info.world_size}, on {socket.gethostname()}, could not reach the other "
            f"ranks over {over}: {why}. Name the interface that reaches them (ip -brief "
            "address lists them): export GLOO_SOCKET_IFNAME=eth0, and NCCL_SOCKET_IFNAME for accelerators."
        )
