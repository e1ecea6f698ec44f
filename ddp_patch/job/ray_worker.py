"""A worker of Ray Train: its process and its process group are Ray's, before the script's function and after it.

Ray calls the function in a thread of the worker, asks from the main thread how it goes, and ends the workers of a run
when the function raised in one of them (ray 2.60, the second engine of Ray Train).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from ..errors import LaunchError, OrderError
from ..ledger import script_line
from .launcher import LaunchInfo

logger = logging.getLogger(__name__)

_RUNNER = "ray.train.v2._internal.execution.worker_group.thread_runner"
_END_WAIT = 60.0  # seconds, in which Ray ends a worker whose error it has got


class RayWorker:
    """What runs the script's function here."""

    def __init__(self, frame: FrameType, group: dist.ProcessGroup) -> None:
        """Take the worker as Ray left it.

        Args:
            frame: that calls the function, and takes what it raises.
            group: torch's default process group, which Ray made.
        """
        self.group = group
        self._runner = frame.f_locals["self"]
        self._queue = self._runner._exc_queue  # the thread comes by here when the function has ended, however it did
        self._made = frame.f_globals["construct_user_exception_with_traceback"]

    def at_end(self, ended: Callable[[BaseException | None], None]) -> None:
        """Have something called in the script's thread when the function has ended, before Ray learns it.

        Args:
            ended: gets what the function raised, or None; what it raises itself, Ray gets as the function's error.
        """
        self._runner._exc_queue = _Door(self._queue, self._converted, ended)

    def say_orders(self, orders: Sequence[str]) -> None:
        """Warn where sets of strings have other orders on other ranks: a process that Ray keeps is not started again.

        Args:
            orders: of each rank; the same for those whose sets have the same order.
        """
        if self.group.rank() == 0 and len(set(orders)) > 1:
            logger.warning(
                "A set of strings has another order in each worker of Ray Train, which keeps its processes, so "
                "ddp_patch cannot start them again with one order. Where batches or weights depend on it, write: "
                'ray.init(runtime_env={"env_vars": {"PYTHONHASHSEED": "0"}})'
            )

    def hand_over(self, error: BaseException) -> NoReturn:
        """Give Ray an error, from whichever thread, and wait until Ray ends this process."""
        self._queue.put(self._converted(error))
        time.sleep(_END_WAIT)
        os._exit(1)

    def _converted(self, error: BaseException) -> Any:
        try:
            raise error
        except BaseException as raised:  # noqa: BLE001 — Ray writes down what is being handled
            return self._made(raised)


class _Door:
    """Stands before the queue that takes how the function ended."""

    def __init__(
        self, queue: Any, convert: Callable[[BaseException], Any], ended: Callable[[BaseException | None], None]
    ) -> None:
        self._queue, self._convert, self._ended = queue, convert, ended
        self._thread = threading.get_ident()
        self._is_over = False

    def put(self, outcome: Any) -> None:
        if threading.get_ident() != self._thread or self._is_over:  # of a thread of Ray's that saves a checkpoint
            self._queue.put(outcome)
            return
        self._is_over = True
        if outcome is not None:  # first of all, so that the errors of those that wait for this rank come later
            self._queue.put(outcome)
        try:
            self._ended(getattr(outcome, "_base_exc", outcome))
        except BaseException as error:  # noqa: BLE001 — it is the function's, to Ray
            self._queue.put(self._convert(error))
        else:
            if outcome is None:
                self._queue.put(None)

    def get(self) -> Any:
        return self._queue.get()


def of_this_thread(info: LaunchInfo) -> RayWorker:
    """Find what runs the script's function.

    Raises:
        LaunchError: where Ray does not run it in this thread, or by an engine that is not known.
        OrderError: where the process group is not the one that Ray made.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == _RUNNER and "self" in frame.f_locals and frame.f_back is not None:
            return RayWorker(frame, _group(info))
        frame = frame.f_back
    raise LaunchError(
        f"Ray Train started {info.world_size} workers, but {script_line()} does not run in the function that it calls, "
        "or Ray is older than the engine that ddp_patch joins (ray 2.60; RAY_TRAIN_V2_ENABLED=0). Call "
        "ddp_patch.enable() in the function that TorchTrainer gets. Or write ScalingConfig(num_workers=1, "
        f"resources_per_worker={{'GPU': {info.world_size}}}), and in its function ddp_patch.launch(train, "
        f"nproc={info.world_size})"
    )


def _group(info: LaunchInfo) -> dist.ProcessGroup:
    group = dist.GroupMember.WORLD if dist.is_initialized() else None
    if group is None or (group.rank(), group.size()) != (info.rank, info.world_size):
        found = "no process group" if group is None else f"a process group of {group.size()} ranks"
        raise OrderError(
            f"{script_line()}: Ray Train makes a process group of {info.world_size} ranks for its workers, and there "
            f"is {found}. Move ddp_patch.enable() above what destroys it or makes another one."
        )
    return group
