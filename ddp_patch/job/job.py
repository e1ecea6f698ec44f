"""The processes of a job: Accelerate's state, the group of the global view, and a clean end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist

from . import accelerate_quietly  # noqa: F401 — before anybody imports it

# isort: split
from accelerate.state import PartialState
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in its __all__
from torch.distributed.rendezvous import register_rendezvous_handler
from torch.nn.parallel import DistributedDataParallel

from ..errors import LaunchError, LockstepError, OrderError
from ..generators import set_states, states
from ..ledger import script_line
from . import hosts
from .attendance import Attendance
from .crash import CrashHook
from .joining import Joining
from .launcher import Told
from .meeting import meet
from .one_process import OneProcess
from .orphans import end_with_launcher
from .precision import Precision
from .watch import Watch

# destroy_process_group starts torch's group names anew (torch 2.13, _world.group_count), so a script that makes its own
# group after ours would read our addresses under the same keys. Ours live under a prefix.
_OWN_STORE = "ddp-patch://"


_stores: list[Any] = []  # that the ranks met at, for their process group


def _rendezvous(url: str, timeout: timedelta, **options: Any) -> Iterator[tuple[Any, int, int]]:
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"ddp_patch/{attempt}", _stores.pop())
    yield store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


register_rendezvous_handler("ddp-patch", _rendezvous)


class _Called(torch.nn.Module):
    """What DDP may write attributes to in place of the script's module."""

    def __init__(self, module: torch.nn.Module, beside: torch.nn.Parameter | None) -> None:
        super().__init__()
        self.beside = beside  # before the module's, since DDP begins with the last one
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class Job:
    """This process as one rank of N, from joining the others to leaving them.

    Joined once per process; sessions come and go on top of it.
    """

    current: ClassVar[Job | None] = None

    def __init__(self, told: Told, timeout: float, may_share: bool = False) -> None:
        """Join the other ranks through Accelerate.

        Args:
            told: by the launcher.
            timeout: of collectives, in seconds.
            may_share: several ranks may have one device.

        Raises:
            OrderError: when the script made a process group of its own, or used another rank's accelerator.
            LaunchError: when something was asked of the launcher that is not applied, or a rank has no device.
        """
        end_with_launcher()
        self.launcher = told.launcher.name
        self.is_announced = False
        used = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        environ = dict(os.environ)  # as the launcher left them
        os.environ.update(told.variables())
        store = meet(told, timeout)
        _stores.append(store)
        seen = hosts.exchange(hosts.look(told.local_rank), store, told, timeout)
        place = hosts.place(told, seen, may_share)
        _check_order(place, used)
        self.placement = placement = place.placement
        self.shares_device = place.shares
        self.closing: list[Callable[[], None]] = []  # called before the process group goes
        self.trained: dict[int, weakref.ref[Any]] = {}  # what earlier sessions of this job iterated and trained
        self.wrapping = False  # DDP is being built by us, not by the script
        excepthook = sys.excepthook
        with Joining(store, told):
            self._connect(place, timeout, environ)
            self.attendance = Attendance(placement.rank, placement.world_size, timeout)
            self.crash = CrashHook(placement, self.attendance.is_first_failure, excepthook)
            self.crash.install()
            self.watch = Watch(self.attendance, self.crash, placement, leave_at_once)
            self._share_generators()
        if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
            # The launcher ends the other ranks with SIGTERM when one fails; what they said must be out by then.
            sys.stdout.reconfigure(line_buffering=True)
        # Registered first, so it runs after every exit function of the script.
        atexit.register(self.close)
        Job.current = self

    def _connect(self, place: hosts.Place, timeout: float, environ: dict[str, str]) -> None:
        """Make the groups through which the ranks reach each other."""
        placement = place.placement
        # By its local rank it takes a device.
        os.environ["LOCAL_RANK"] = str(placement.local_rank if place.device is None else place.device)
        state = PartialState(
            cpu=place.device is None,
            init_method=_OWN_STORE,
            timeout=timedelta(seconds=timeout),
            **({"backend": "gloo"} if place.shares else {}),  # NCCL wants a device for each
        )
        self.device: torch.device = state.device
        """This rank's device."""
        self.precision = Precision(self.device.type)
        if state.num_processes != placement.world_size:
            raise LaunchError(
                f"The launcher started {placement.world_size} ranks but Accelerate {state} sees "
                f"{state.num_processes}. Start the script with torchrun, or without ACCELERATE_* variables."
            )
        assert dist.GroupMember.WORLD is not None
        self.one_process = OneProcess(environ, dist.GroupMember.WORLD)
        # A group of its own keeps the collectives of the global view apart from DDP's, whose order depends on
        # which gradient is ready first.
        # Batches may live on the host as well as on the accelerator.
        both = None if self.device.type == "cpu" else f"cpu:gloo,{self.device.type}:{dist.get_backend()}"
        self.group = dist.new_group(timeout=timedelta(seconds=timeout), backend=both)

    def wrap(
        self,
        module: torch.nn.Module,
        beside: torch.nn.Parameter | None = None,
        without: Sequence[torch.nn.Parameter] = (),
        **options: Any,
    ) -> DistributedDataParallel:
        """Put a module under DistributedDataParallel.

        Args:
            module: to be called through the result.
            beside: a parameter that is reduced with the module's.
            without: parameters that DDP leaves alone.
            options: for DDP.
        """
        inner = _Called(module, beside)
        if without:
            ignored = [n for n, p in inner.named_parameters() if any(p is other for other in without)]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ignored)
        self.wrapping = True
        try:
            return DistributedDataParallel(
                inner,
                process_group=self.one_process.group,
                # Buffers are equal by construction, so a broadcast per forward would be wasted.
                forward_sync_buffers=False,
                # DDP's broadcast writes to the parameters, which invalidates graphs that hold them; we compare instead.
                init_sync=False,
                **options,
            )
        finally:
            self.wrapping = False

    def explain(self, error: RuntimeError | None) -> Exception | None:
        """Say why a collective failed; with no error, end this process if it is known to be out of step.

        A script that caught the first error that said so cannot be helped: the other ranks wait for it.

        Returns:
            what to raise; None if nothing is known to be wrong.
        """
        if error is not None:
            return self.attendance.explained(error)
        if self.attendance.out_of_step:
            if not self.attendance.is_told:
                return self.attendance.told()
            self._say_out_of_step()
            leave_at_once()
        other = self.one_process.other_group
        if other is not None:
            ranks = f"{other.size()} rank{'s' if other.size() > 1 else ''}"
            return OrderError(
                f"{script_line()}: a process group ({dist.get_backend(other)}, {ranks}) was made by a way "
                "that ddp_patch does not know, so that libraries would see some ranks again. Call "
                "torch.distributed.init_process_group by its name, or leave ddp_patch.enable() out of a script that "
                "distributes itself."
            )
        return None

    def _say_out_of_step(self) -> None:
        self.crash(LockstepError, LockstepError(self.attendance.out_of_step), None)

    def release(self) -> None:
        """Make room for a script that distributes itself, which finds what the launcher left."""
        Job.current = None
        atexit.unregister(self.close)
        self.watch.stop()
        self.attendance.close()
        self.crash.uninstall()
        set_states(self._own_generators)
        self.one_process.show()
        del self.group  # see close
        self.one_process.destroy()

    def close(self) -> None:
        """Leave the job together with the other ranks. Safe to call twice."""
        if Job.current is not self:
            return
        Job.current = None
        atexit.unregister(self.close)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError, AttributeError):
                stream.flush()
        if not self.crash.failed:
            self.watch.wait_for_the_end()
        if self.attendance.out_of_step and not self.crash.failed:
            self._say_out_of_step()
        self.watch.stop()
        for call in reversed(self.closing):
            call()
        self.attendance.close()
        gc.collect()
        self.crash.uninstall()
        if self.crash.failed:
            leave_at_once()  # destroy_process_group waits for collectives that the other ranks will never join
        # gloo's threads end with the last reference to their group. One that lets go of a tensor takes the GIL, which
        # aborts the process while the interpreter ends (torch 2.13, pytorch issue 190489).
        del self.group
        self.one_process.destroy()

    def _share_generators(self) -> None:
        """Start the script stream from rank 0's generators, whether or not the script seeded them already."""
        self._own_generators = states()
        shared = list(self._own_generators)
        dist.broadcast_object_list(shared, src=0, group=self.group, device=self.device)
        set_states(shared)
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).manual_seed(torch.initial_seed())


def leave_at_once() -> NoReturn:
    """End this process without the exit functions, which would wait for other ranks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()
    os._exit(1)


def _check_order(place: hosts.Place, used: int | None) -> None:
    if used is not None and used != place.device:
        raise OrderError(
            f"CUDA was initialised on device {used}, but this is local rank {place.placement.local_rank}, whose device "
            f"is cuda:{place.device}. Move ddp_patch.enable() above the first line that uses CUDA."
        )
