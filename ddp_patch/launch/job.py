"""The processes of a job: Accelerate's state, the group of the global view, and a clean end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist

from . import accelerate_quietly  # noqa: F401 — before anybody imports it

# isort: split
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in its __all__
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous
from torch.nn.parallel import DistributedDataParallel

from ..errors import LaunchError, LockstepError, OrderError
from ..generators import set_states, states
from .attendance import Attendance
from .crash import CrashHook
from .launcher import Placement
from .orphans import end_with_launcher
from .precision import Precision

# destroy_process_group starts torch's group names anew (torch 2.13, _world.group_count), so a script that makes its own
# group after ours would read our addresses under the same keys. Ours live under a prefix.
_OWN_STORE = "ddp-patch://"


def _rendezvous(url: str, timeout: timedelta, **options: Any) -> Iterator[tuple[Any, int, int]]:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    yield PrefixStore(f"ddp_patch/{attempt}", store), rank, world_size


register_rendezvous_handler("ddp-patch", _rendezvous)


@dataclass
class _DdpKwargs(DistributedDataParallelKwargs):  # type: ignore[misc]  # Accelerate has no type hints
    # torch 2.13 deprecates broadcast_buffers for this, which Accelerate 1.15 does not know yet. Buffers are equal
    # by construction here, so a broadcast per forward would be wasted.
    forward_sync_buffers: bool | None = None
    # DDP's broadcast writes to the parameters, which invalidates graphs that hold them; we compare instead.
    init_sync: bool = True


class _Called(torch.nn.Module):
    """What DDP and Accelerate may write attributes to in place of the script's module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Job:
    """This process as one rank of N, from joining the others to leaving them.

    Joined once per process; sessions come and go on top of it.
    """

    current: ClassVar[Job | None] = None

    def __init__(self, placement: Placement, timeout: float) -> None:
        """Join the other ranks through Accelerate.

        Raises:
            OrderError: when the script made a process group of its own, or used another rank's accelerator.
            LaunchError: when something was asked of the launcher that is not applied.
        """
        _check_order(placement)
        end_with_launcher()
        self.placement = placement
        self.closing: list[Callable[[], None]] = []  # called before the process group goes
        self.trained: dict[int, weakref.ref[Any]] = {}  # what earlier sessions of this job iterated and trained
        self.wrapping = False  # DDP is being built by us, not by the script
        excepthook = sys.excepthook
        # Ranks that share an accelerator: NCCL wants one each.
        self._shares = placement.local_world_size > accelerator_count() > 0
        backend = {"backend": "gloo"} if self._shares else {}
        self.accelerator = Accelerator(
            cpu=accelerator_count() == 0,
            mixed_precision="no",  # ours to apply: see ``precision``
            kwargs_handlers=[
                InitProcessGroupKwargs(init_method=_OWN_STORE, timeout=timedelta(seconds=timeout), **backend)
            ],
        )
        self.precision = Precision(self.device.type)
        if self.accelerator.num_processes != placement.world_size:
            raise LaunchError(
                f"The launcher started {placement.world_size} ranks but Accelerate {self.accelerator.state} sees "
                f"{self.accelerator.num_processes}. Start the script with torchrun, or without ACCELERATE_* variables."
            )
        # A group of its own keeps the collectives of the global view apart from DDP's, whose order depends on
        # which gradient is ready first.
        # Batches may live on the host as well as on the accelerator.
        both = None if self.device.type == "cpu" else f"cpu:gloo,{self.device.type}:{dist.get_backend()}"
        self.group = dist.new_group(timeout=timedelta(seconds=timeout), backend=both)
        self.attendance = Attendance(placement.rank, placement.world_size, timeout)
        self.crash = CrashHook(placement, self.attendance.is_first_failure, excepthook)
        self.crash.install()
        self._share_generators()
        if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
            # The launcher ends the other ranks with SIGTERM when one fails; what they said must be out by then.
            sys.stdout.reconfigure(line_buffering=True)
        # Registered first, so it runs after every exit function of the script.
        atexit.register(self.close)
        Job.current = self

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        device: torch.device = self.accelerator.device
        return device

    def wrap(
        self, module: torch.nn.Module, without: Sequence[torch.nn.Parameter] = (), **options: Any
    ) -> DistributedDataParallel:
        """Put a module under DistributedDataParallel, as Accelerate sets it up for this device.

        Args:
            module: to be called through the result.
            without: parameters that DDP leaves alone.
            options: for DDP.
        """
        # Accelerate 1.15 looks handlers up by their exact class, so a subclass is set where it keeps it.
        self.accelerator.ddp_handler = _DdpKwargs(forward_sync_buffers=False, init_sync=False, **options)
        inner = _Called(module)
        if without:
            ignored = [n for n, p in inner.named_parameters() if any(p is other for other in without)]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ignored)
        self.wrapping = True
        if self._shares:
            os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"  # it takes the local rank for the device
        try:
            wrapped = self.accelerator.prepare_model(inner, device_placement=False)
        finally:
            self.wrapping = False
        # Accelerate keeps what it prepared; a DDP instance alive at exit aborts the process (torch 2.13).
        self.accelerator._models.clear()
        return wrapped  # type: ignore[no-any-return]

    def explain(self, error: RuntimeError | None) -> Exception | None:
        """Say why a collective failed; with no error, end this process if it is known to be out of step.

        A script that caught the first error that said so cannot be helped: the other ranks wait for it.

        Returns:
            what to raise; None if nothing is known to be wrong.
        """
        if error is not None:
            return self.attendance.explained(error)
        if self.attendance.out_of_step:
            self._say_out_of_step()
            leave_at_once()
        return None

    def _say_out_of_step(self) -> None:
        self.crash(LockstepError, LockstepError(self.attendance.out_of_step), None)

    def release(self, keeps_group: bool) -> None:
        """Make room for a script that distributes itself, with the generators it would have had.

        Args:
            keeps_group: the script goes on with the default process group that it found.
        """
        Job.current = None
        atexit.unregister(self.close)
        self.crash.uninstall()
        set_states(self._own_generators)
        if keeps_group:
            atexit.register(_destroy_group)
        else:
            dist.destroy_process_group()
            AcceleratorState._reset_state(reset_partial_state=True)

    def close(self) -> None:
        """Leave the job together with the other ranks. Safe to call twice."""
        if Job.current is not self:
            return
        Job.current = None
        atexit.unregister(self.close)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError, AttributeError):
                stream.flush()
        if self.attendance.out_of_step and not self.crash.failed:
            self._say_out_of_step()
        if not self.crash.failed:
            self.attendance.wait_for_the_end()
        for call in reversed(self.closing):
            call()
        gc.collect()
        self.crash.uninstall()
        if self.crash.failed:
            leave_at_once()  # destroy_process_group waits for collectives that the other ranks will never join
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)

    def _share_generators(self) -> None:
        """Start the script stream from rank 0's generators, whether or not the script seeded them already."""
        self._own_generators = states()
        shared = list(self._own_generators)
        dist.broadcast_object_list(shared, src=0, group=self.group, device=self.device)
        set_states(shared)
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).manual_seed(torch.initial_seed())


def accelerator_count() -> int:
    """Count the visible accelerators that ranks can have one each of, without touching any."""
    if not torch.accelerator.is_available():
        return 0
    kind = torch.accelerator.current_accelerator()
    return 0 if kind is None or kind.type == "mps" else torch.accelerator.device_count()


def leave_at_once() -> NoReturn:
    """End this process without the exit functions, which would wait for other ranks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()
    os._exit(1)


def _check_order(placement: Placement) -> None:
    if not torch.cuda.is_initialized():
        return
    own = placement.local_rank % (torch.cuda.device_count() or placement.local_world_size)
    if torch.cuda.current_device() != own:
        raise OrderError(
            f"CUDA was initialised on device {torch.cuda.current_device()}, but this is local rank "
            f"{placement.local_rank}, whose device is cuda:{own}. Move ddp_patch.enable() above the "
            "first line that uses CUDA."
        )


def _destroy_group() -> None:
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()
