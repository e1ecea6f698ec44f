"""The processes of a job: Accelerate's state, the group of the global view, and a clean end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist

from ..errors import LockstepError
from ..generators import set_states, states
from ..state import State
from . import attempt, forked, hosts, loopback, ray_worker, reaching, rendezvous, texts, views
from .crash import CrashHook
from .departure import Departure
from .divergence_watch import DivergenceWatch
from .forwarded_signals import ForwardedSignals
from .groups import connect, refuse_others_device
from .joining import Joining
from .keepalive import notice_vanished_hosts
from .key import VARIABLE as KEY
from .key import Offer
from .launcher import LaunchInfo
from .leaving import Leaving, leave_at_once
from .meeting import holder, meet
from .orphans import end_with_launcher
from .os_exit import Mark
from .precision import Precision
from .rank_status import RankStatus
from .seal import Seal
from .signals import Signals
from .table import VARIABLES
from .wrapping import Wrapping

_INTERFACE = "GLOO_SOCKET_IFNAME"  # which is chosen for the ranks


class Job:
    """This process as one rank of N, from joining the others to leaving them.

    Joined once per process; sessions come and go on top of it.
    """

    current: ClassVar[Job | None] = None

    def __init__(self, info: LaunchInfo, timeout: float, may_share: bool = False) -> None:
        """Join the other ranks through Accelerate.

        Args:
            info: from the launcher.
            timeout: of collectives, in seconds.
            may_share: several ranks may have one device.

        Raises:
            OrderError: when the script made a process group of its own, or used another rank's accelerator.
            LaunchError: when something was asked of the launcher that is not applied, or a rank has no device.
        """
        end_with_launcher()
        self.launcher = info.launcher.name
        self.worker = ray_worker.of_this_thread(info) if info.launcher.keeps else None
        """The launcher's process that this one is, and stays."""
        if self.worker is not None:
            attempt.begin()
        self.is_announced = False
        used = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        environ = dict(os.environ)  # as the launcher left them
        self._environ = {name: environ.get(name) for name in (_INTERFACE, KEY, *VARIABLES)}
        os.environ.update(info.variables())
        store = meet(info, timeout)
        if self.worker is None:
            rendezvous.hand_over(store)
        offer = Offer(info.rank)
        seen = views.exchange(offer, store, info, timeout)
        place = hosts.place(info, seen, may_share)
        self.placement = placement = place.placement
        self.place = place
        self.sees_one_disk = len({its.mounts for its in seen}) == 1
        self.closing: list[Callable[[], None]] = []  # called before the process group goes
        self.trained: dict[int, weakref.ref[Any]] = {}  # what earlier sessions of this job iterated and trained
        self.wrapping = Wrapping(lambda: self.one_process.group)
        excepthook = sys.excepthook
        with loopback.sockets({its.network for its in seen}), Joining(store, info) as joining:
            if self.worker is None:
                refuse_others_device(place, used)
            self.seal = Seal(offer.agreed([its.key for its in seen]))
            launchers = None if self.worker is None else self.worker.group
            self.device, self.one_process, self.group = connect(place, timeout, environ, launchers)
            if reaching.is_to_be_tried_by_devices(place, seen):
                joining.by_devices(self.device, [self.one_process.group, self.group])
            self.precision = Precision(self.device.type, self.launcher)
            self.rank_status = RankStatus(placement.rank, placement.world_size, timeout, holder())
            self.crash = CrashHook(placement, self.rank_status, excepthook)
            if self.worker is None:
                self.crash.install()
            self.departure = Departure(self.rank_status, placement.rank)
            self.watch = DivergenceWatch(self.rank_status, self.crash, placement, self.leave, self.device.type != "cpu")
            self.watch.ending = self.departure.goes_on
            offer.close()  # all have come
            self.signals = Signals(self.watch.agreement, ForwardedSignals(placement.rank))
            notice_vanished_hosts(reaching.other_hosts(seen, info.rank))
            self._share_generators()
        self._prepare_end(seen)
        forked.belongs_to_this_process(self)
        Job.current = self

    def _prepare_end(self, seen: Sequence[hosts.HostView]) -> None:
        if self.worker is not None:
            self.worker.at_end(self._function_ended)
            self.worker.say_orders([its.order for its in seen])
        elif sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
            # The launcher ends the other ranks with SIGTERM when one fails; what they said must be out by then.
            sys.stdout.reconfigure(line_buffering=True)
        self._mark = Mark(self.placement.rank)
        # Registered first, so it runs after every exit function of the script.
        atexit.register(self.close)

    def explain(self, error: RuntimeError | None) -> Exception | None:
        """Say why a collective failed; with no error, end this process if it is known to be out of step.

        A script that caught the first error that said so cannot be helped: the other ranks wait for it.

        Returns:
            what to raise; None if nothing is known to be wrong.
        """
        if error is not None:
            return self.rank_status.explained(error)
        if self.rank_status.out_of_step:
            if not self.rank_status.is_raised:
                return self.rank_status.out_of_step_error()
            self._say_out_of_step()
            self.leave()
        return self.one_process.refused()

    def _say_out_of_step(self) -> None:
        self.crash(LockstepError, LockstepError(self.rank_status.out_of_step), None)

    def leave(self, code: int = 1) -> NoReturn:
        """End this process, which cannot go on with the others; where it is the launcher's, have that end it."""
        if self.worker is not None:
            self.worker.hand_over(self.crash.error or LockstepError(self.rank_status.out_of_step))
        self.rank_status.wait_until_heard()
        self._mark.ends()
        self.departure.goes()
        leave_at_once(code)

    def meets(self, error: BaseException) -> None:
        """Take note of what ends the session. In a launcher's process it goes to the launcher, which ends the others.

        They wait for it: nothing is settled with them, and what they are told is for those that it does not end.
        """
        if self.worker is not None and not self.crash.failed:
            self.crash.failed = self.crash.is_ending = True
            rank, size = self.placement.rank, self.placement.world_size
            self.rank_status.fail(f"rank {rank} of {size} raised {type(error).__name__} ({error}), so the job ends.")

    def _function_ended(self, error: BaseException | None) -> None:
        """Give the launcher's process back as it was."""
        State.options = State.joined = None
        if Job.current is not self:  # it stood aside
            return
        if error is None and self.crash.error is None:
            self.crash.failed = False  # the script has caught what a session ended by
        try:
            if error is not None:
                self.meets(error)
            for call in reversed(self.closing):
                call()
        except BaseException as raised:
            self.meets(raised)
            raise
        finally:
            self.close()
        if error is None and self.crash.error is not None:
            raise self.crash.error

    def release(self) -> None:
        """Make room for a script that distributes itself, which finds what the launcher left."""
        Job.current = None
        atexit.unregister(self.close)
        self._mark.ends()
        self.watch.stop()
        self.rank_status.close()
        self.crash.uninstall()
        set_states(self._generator_states)
        self.one_process.show()
        del self.group  # see close
        self.one_process.destroy()

    def close(self) -> None:
        """Leave the job together with the other ranks. Safe to call twice."""
        if Job.current is not self:
            return
        Job.current = None
        atexit.unregister(self.close)
        self._mark.ends()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError, AttributeError):
                stream.flush()
        if self.crash.failed and self.worker is not None:  # the launcher has the error, and ends the process
            self.crash.is_ending = True  # the others see this rank there until then
            return
        if not self.crash.failed:
            self.watch.wait_for_the_end()
        if self.rank_status.out_of_step and not self.crash.failed:
            self._say_out_of_step()
        if self.crash.failed:
            self.rank_status.wait_until_heard()
            self.watch.agreement.close()  # it goes on itself: see Departure
        else:
            self.watch.stop()
        for call in reversed(self.closing):
            call()
        if self.crash.failed and self.worker is None:
            # destroy_process_group waits for collectives that the other ranks will never join
            Leaving(self.crash, self.departure).begin()
            return
        self.watch.stop()
        self.rank_status.close()
        gc.collect()
        self.crash.uninstall()
        if self.worker is not None:
            if not self.crash.failed:
                dist.destroy_process_group(self.group)
            for name, value in self._environ.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
        # gloo's threads end with the last reference to their group. One that lets go of a tensor takes the GIL, which
        # aborts the process while the interpreter ends (torch 2.13, pytorch issue 190489).
        del self.group
        if not self.crash.failed:
            self.one_process.destroy()

    def _share_generators(self) -> None:
        """Start the global generators from rank 0's, whether or not the script seeded them already."""
        self._generator_states = states()
        what = "the generators of rank 0"
        packed = self.seal.pack(what, self._generator_states) if self.placement.rank == 0 else b""
        set_states(self.seal.unpack(what, texts.of_leader(packed, self.group, self.device)))
        if self.device.type != "cpu":
            torch.get_device_module(self.device.type).manual_seed(torch.initial_seed())
