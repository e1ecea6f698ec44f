"""``ddp_patch.launch``: one call of a function, on as many ranks as there shall be."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .. import api
from ..errors import LaunchError, OptionError
from ..job import launcher, relaunch
from ..options import Options
from .caller import call


def launch(function: Callable[..., Any], /, *args: Any, nproc: int | None = None, **kwargs: Any) -> Any:
    """Run a function on several processes as if it were one, and give what it returns.

    ``model = ddp_patch.launch(train, dataset, nproc=2, epochs=3)`` in a notebook, at a prompt or in a script. The ranks
    are new processes: what the function uses of this one, also classes and functions of other cells, is pickled by
    value (cloudpickle), with the generators' states, the default type and the folder. What it prints appears here as it
    comes; rank 0's result is returned, and the generators go on where it left them. What it raises is raised here.

    Tensors that it got and changed in place, the weights of a model for one, are changed here as well, and so are
    attributes of modules and classes, optimizers, schedulers, scalers and generators, also where it then raised; one of
    them that it returns is this process's own. Other objects that it changes, a list for one, are those of the ranks:
    return them.

    A fork of this process would need no pickling, but ends in a deadlock once torch has computed here: OpenMP's threads
    are not in the child that waits for them (torch 2.13, libgomp: three of three tries of a product with two threads).

    Under a launcher the ranks are there already, and the function runs on them.

    Args:
        function: whatever pickles by value; it runs inside of ``ddp_patch.enable()``.
        *args: for it.
        nproc: number of processes. None: DDP_PATCH_NPROC, or one per visible accelerator.
        **kwargs: for it.

    Raises:
        LaunchError: inside of another call; for what cannot be handed over; if a rank was killed.
        OptionError: for something that cannot be called, or an ``nproc`` that cannot be used.
        OrderError: when the function would need tensors of this process's accelerator.
    """
    if not callable(function):
        raise OptionError(f"ddp_patch.launch({function!r}): it takes a function, then the function's own arguments.")
    if api.is_enabled():
        raise LaunchError(
            f"ddp_patch.launch({getattr(function, '__name__', function)}) where ddp_patch is enabled already, so these "
            "ranks would start ranks. Call the function itself, or launch it outside of the other one."
        )
    return run(function, {} if nproc is None else {"nproc": nproc}, args, kwargs)


def run(function: Callable[..., Any], options: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function on ranks, here if they are there already or one is enough.

    Args:
        function: to call.
        options: of ``enable``.
        args: for the function.
        kwargs: for the function.
    """
    launched = launcher.detect(os.environ)
    # A worker of Ray's that is alone starts its own ranks: it is the process that has the resources.
    are_there = launched is not None and (
        launched.world_size > 1 or not (launched.launcher.refusal or launched.launcher.keeps)
    )
    nproc = 1 if are_there else _count(Options.resolve(options))
    if nproc == 1:
        with api.enable(**options):
            return function(*args, **kwargs)
    return call(function, args, kwargs, {**options, "nproc": nproc})


def _count(options: Options) -> int:
    from ..job.hosts import accelerator_count  # noqa: PLC0415 — imports torch, only now needed

    return relaunch.worker_count(options.nproc, accelerator_count(), options.share_devices)
