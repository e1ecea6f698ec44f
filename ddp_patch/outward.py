"""Everything that keeps a job's outward effects those of one process, put together for a session."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

import wrapt

from . import extending
from .batch.world import World
from .effects.blame import Blame
from .effects.checkpoints import Checkpoints
from .effects.commands import Commands
from .effects.debugger import Debugger
from .effects.entropy import Entropy
from .effects.file_objects import flush_all
from .effects.files import Files
from .effects.folders import Folders
from .effects.ownership import Ownership
from .effects.places import Places
from .effects.prompts import Input, Prompts
from .effects.shared import SharedObjects
from .effects.terminal import Terminal
from .effects.turns import Turns
from .launch.job import Job
from .patcher import Patch
from .patches import (
    checkpoint,
    commands,
    debuggers,
    device,
    entropy,
    files,
    folders,
    ipython,
    loggers,
    native_files,
    plots,
    profiles,
    prompts,
    random_states,
    state_dict,
    tensorboard,
    trackers,
    warned,
)
from .replica.replicas import Replicas


class Outward:
    """What a session does about files, folders, commands, logs, checkpoints, devices, seeds and the terminal."""

    def __init__(self, job: Job, world: World, replicas: Replicas) -> None:
        """Prepare; nothing changes before the patches are applied.

        Args:
            job: of this process.
            world: the ranks.
            replicas: of the models.
        """
        self._job = job
        self._world = world
        self._replicas = replicas
        self._turns = Turns(job.attendance, world)
        self._owners = Ownership()
        self._files = Files(self._turns, self._owners)
        self._checkpoints = Checkpoints(world, self._turns, self._owners, self._files)
        self._shared = SharedObjects(self._turns, self._owners)  # that the script's author named
        self._entropy = Entropy(self._turns, self._owners)
        self._blame = Blame(world.muted.get)
        self._terminal: Terminal | None = None
        self._prompts = Prompts(self._turns, world)
        self._debugger = Debugger(self._turns, self._prompts)
        self._input: Input | None = None

    def patches(self) -> list[Patch]:
        """Rows of all of them."""
        places = Places(self._job.device)
        return [
            *checkpoint.patches(self._checkpoints, places),
            *state_dict.patches(),
            *device.patches(places, self._agreed, self._world.ledger.warn),
            *entropy.patches(self._entropy, self._replicas.stream.reseeded),
            *random_states.patches(self._replicas.stream),
            *files.patches(self._files),
            *native_files.patches(self._files),
            *profiles.patches(self._turns),
            *folders.patches(Folders(self._turns, self._owners, self._files), self._owners),
            *commands.patches(Commands(self._turns, self._owners, self._files)),
            *loggers.patches(self._turns, self._files),
            *prompts.patches(self._prompts),
            *debuggers.patches(self._debugger),
            *warned.patches(self._blame),
        ]

    def _agreed(self, own: Any) -> list[Any]:
        """What each rank measured, where all are at the same point; else this rank alone."""
        return [given[0] for given in self._world.share([own])] if self._turns.are_taken() else [own]

    def patch_when_imported(self, apply: Callable[[list[Patch]], None]) -> None:
        """Take over libraries as soon as the script imports them."""
        checkpoint.patch_when_imported(self._checkpoints, apply)
        tensorboard.patch_when_imported(self._turns, self._replicas, apply)
        trackers.patch_when_imported(self._turns, self._owners, apply)
        native_files.patch_when_imported(self._turns, self._owners, self._files, apply)
        plots.patch_when_imported(self._turns, apply)
        prompts.patch_when_imported(self._prompts, apply)
        ipython.patch_when_imported(self._turns, apply)
        entropy.patch_when_imported(self._entropy, apply)

        for module, name in extending.trackers:
            self.take_over_tracker(module, name, apply)

    def take_over_tracker(self, module: str, name: str, apply: Callable[[list[Patch]], None]) -> None:
        """Have rank 0 alone make what a class or function of a library makes."""
        effect = "rank 0's; all get what its methods return"
        row = Patch(module, name, self._shared.sharing(f"{module}.{name}"), effect)
        wrapt.register_post_import_hook(lambda _: apply([row]), module)

    def rank_zero(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Have rank 0 alone call a function."""
        return self._shared.call(name, function, args, kwargs)

    def begin(self) -> None:
        """Silence the ranks other than 0, and have all read what rank 0 reads. Every rank comes here together."""
        self._blame.begin()
        self._terminal = Terminal(self._world, self._job.crash)
        if sys.stdin is not None:
            self._input = Input(self._prompts, self._turns, sys.stdin, self._terminal.asks)
            sys.stdin = cast("TextIO", self._input)
        self._debugger.begin(self._world)

    def resume_debugger(self) -> None:
        """Have a debugger that ran when the script came to ``enable()`` go on, on every rank."""
        self._debugger.resume()

    def be_heard(self) -> None:
        """Let every rank speak again."""
        if self._terminal is not None:
            self._terminal.stop()
        if self._input is not None and sys.stdin is self._input:
            sys.stdin = self._input.real

    @contextlib.contextmanager
    def per_rank(self) -> Iterator[None]:
        """Let this rank speak and write for itself."""
        assert self._terminal is not None
        with self._turns.alone(), self._terminal.heard():
            yield

    def stop(self) -> None:
        """Write what is left to write; from now on, everything is done as it comes."""
        self._blame.stop()
        flush_all()
        error = self._turns.pending
        if error is not None and not self._job.crash.failed:
            self._job.crash(type(error), error, None)
        with self._turns.alone():
            self._files.close()
        self._turns.stop()
