"""Ray Train's workers: what its helpers tell the script's function is what they tell a worker that is alone.

So ``prepare_model`` wraps nothing, and ``prepare_data_loader`` puts no sampler in: both ask how many workers there are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..effects.shared import plain
from ..errors import OrderError
from ..ledger import script_line
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session
from ..structure import map_leaves

_CONTEXT = "ray.train.v2.api.context"
_FUNCTIONS = "DistributedTrainFnUtils"
_UTILITIES = "ray.train.v2._internal.execution.train_fn_utils"
_ALONE = {
    "get_world_size": 1,
    "get_world_rank": 0,
    "get_local_rank": 0,
    "get_local_world_size": 1,
    "get_node_rank": 0,
}
_TOGETHER = ("barrier", "broadcast_from_rank_zero", "get_preemption_info", "get_all_reported_checkpoints")
_ALL = "all workers call it, at the same point of the script"


def _alone(value: int) -> Wrapper:
    def tell(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return wrapped(*args, **kwargs) if session.job.worker is None else value

    return tell


def _together(what: str) -> Wrapper:
    """A wrapper for what all workers have to call, and what files it touches are Ray's."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return _call(session, what, lambda: wrapped(*args, **kwargs))

    return call


def _call(session: Session, what: str, real: Callable[[], Any]) -> Any:
    if session.job.worker is None or not session.rank_zero.in_lockstep():
        return real()
    session.world.check()
    counts = session.world.reaches_point(what)
    try:
        with session.rank_zero.alone():
            return real()
    except Exception as error:
        session.world.check_all_failed(error, what)  # the others may go on
        raise
    finally:
        if counts:
            session.world.trail.leave()


def _report(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.job.worker is not None and session.rank_zero.in_lockstep():
        bound = inspect.signature(wrapped).bind(*args, **kwargs)
        args, kwargs = map_leaves(plain, (bound.args, bound.kwargs))
        if not session.rank_zero.is_leader:  # the folder is rank 0's, and so is what becomes of it
            kwargs = {**inspect.signature(wrapped).bind(*args, **kwargs).arguments, "checkpoint": None}
            args = ()
    return _call(session, "ray.train.report", lambda: wrapped(*args, **kwargs))


def _shard(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if session.job.worker is None:
        return wrapped(*args, **kwargs)
    raise OrderError(
        f"{script_line()}: ray.train.get_dataset_shard gives each worker rows of its own, so that the script would not "
        "see what one process sees. Read with torch's DataLoader, whose batches ddp_patch deals to the workers, or "
        "write ScalingConfig(num_workers=1), and in its function ddp_patch.launch(train, nproc=2)."
    )


def _row(module: str, target: str, wrapper: Wrapper, effect: str) -> Patch:
    return Patch(module, target, wrapper, effect, when_imported=module, optional=True)


PATCHES = (
    *(
        _row(_CONTEXT, f"DistributedTrainContext.{name}", _alone(value), f"tells {value}, as to a worker that is alone")
        for name, value in _ALONE.items()
    ),
    _row(_UTILITIES, f"{_FUNCTIONS}.report", _report, f"{_ALL}; the checkpoint is rank 0's, as the numbers are"),
    *(_row(_UTILITIES, f"{_FUNCTIONS}.{name}", _together(f"ray.train's {name}"), _ALL) for name in _TOGETHER),
    _row(_UTILITIES, f"{_FUNCTIONS}.get_dataset_shard", _shard, "refused, with the line to write"),
)
