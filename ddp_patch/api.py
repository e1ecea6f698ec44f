"""enable, disable, is_enabled, report: the life of a session; rank, world_size, is_main, per_rank."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import script_thread, starting
from .errors import OptionError
from .options import Options
from .state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack  # what torch needs anyway; Python's own has it from 3.11

    from .diagnosis.report import Report
    from .options import EnableOptions

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Python's own, and those made after it: datasets and pathos start processes by the second, Celery by the third.
_MULTIPROCESSING = ("multiprocessing.process", "multiprocess.process", "billiard.process")


class Enabled:
    """What ``enable()`` returns: usable as a context manager and as a decorator, or ignored."""

    def __init__(self, options: dict[str, Any], owns: bool) -> None:
        """Remember the options, and whether this very call started the session."""
        self._options = options
        self._owns = owns

    def __enter__(self) -> Enabled:
        """The session is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the session, if this ``enable()`` started it."""
        if self._owns:
            if error is not None and State.joined is not None:
                State.joined.meets(error)
            if error is not None and State.session is not None:
                State.session.ends_by_error = True
            disable()

    def __call__(self, function: F) -> F:
        """Make a function run with ddp_patch enabled, and the rest of the script without."""
        if self._owns:
            disable()
        return _decorated(function, self._options)


@overload
def enable(function: F, /) -> F: ...
@overload
def enable(**options: Unpack[EnableOptions]) -> Enabled: ...
def enable(function: Any = None, /, **options: Unpack[EnableOptions]) -> Any:
    """Run this script on several processes as if it were one.

    A plain call at the top of a script, a context manager (``with ddp_patch.enable():``) or a decorator
    (``@ddp_patch.enable``, ``@ddp_patch.enable(nproc=2)``: active while the function runs; in a notebook, each call is
    a ``ddp_patch.launch``).

    Under torchrun or ``accelerate launch`` this process joins the others. Started by plain ``python`` with several
    accelerators visible, or with ``nproc``, the script is started again on that many ranks, in place of this process.
    Otherwise there is one process, and nothing is installed.

    Args:
        function: the function to decorate, when used as ``@ddp_patch.enable``.
        **options: see ``ddp_patch.Options``. Each has a variable, such as DDP_PATCH_NPROC.

    Raises:
        OptionError: for an unknown option or value, or a second call with other options.
        LaunchError: when the job cannot be started or joined as asked.
        OrderError: when it comes too late in the script.
    """
    if function is not None:
        if not callable(function):
            raise OptionError(f"ddp_patch.enable({function!r}): options go by name, for instance nproc=2.")
        return _decorated(function, dict(options))
    resolved = Options.resolve(options)
    if State.options is not None:
        if resolved.nproc is None:  # any number will do
            resolved = dataclasses.replace(resolved, nproc=State.options.nproc)
        by_command, State.by_command = State.by_command, False
        if State.options == resolved:
            if State.session is not None:
                State.session.console.debugger.resume()
            return Enabled(dict(options), owns=False)
        if not by_command or State.options.contradict(options):
            raise OptionError(
                f"ddp_patch is enabled with {State.options.unlike(resolved)}, and cannot change to "
                f"{resolved.unlike(State.options)} half-way. "
                "Call ddp_patch.disable() before, or keep one of the two, which may stand in enable() lines or in the "
                "command line."
            )
        disable()  # the command's session, of which the script asks for more
        State.options = resolved
        starting.start(resolved, _stopped, lambda: str(report()))
        return Enabled(dict(options), owns=False)
    # A worker that multiprocessing started belongs to the rank that started it; nothing is to be done in it.
    # Not imported for the question: a child that it started has it already.
    loaded = [sys.modules[name] for name in _MULTIPROCESSING if name in sys.modules]
    if not any(map(_is_child, loaded)):
        if _waits_for_calls(resolved):
            return Enabled(dict(options), owns=False)
        starting.start(resolved, _stopped, lambda: str(report()))
    State.options = resolved
    return Enabled(dict(options), owns=True)


def _waits_for_calls(options: Options) -> bool:
    """Tell whether this is ``@enable(nproc=2)`` on a function of a notebook: ranks start when it is called."""
    from .job import program  # noqa: PLC0415

    return options.nproc != 1 and program.is_typed() and program.decorates(sys._getframe(2))


def _is_child(processes: Any) -> bool:
    """Tell whether one of the multiprocessing packages started this process.

    While one that was spawned imports the script, it does not know its parent yet (CPython 3.10 to 3.14).
    """
    inherits = getattr(processes.current_process(), "_inheriting", False)
    parent_process = getattr(processes, "parent_process", None)  # which billiard 4.3 lacks
    return bool(inherits) or (parent_process is not None and parent_process() is not None)


def disable() -> None:
    """Undo everything ``enable()`` did in this process. The ranks stay joined and can enable again."""
    if State.session is not None:
        State.last_report = State.session.report()
        State.session.stop()
        script_thread.end()
    State.session = None
    State.options = None


def is_enabled() -> bool:
    """Tell whether ddp_patch is enabled, on one process or several."""
    return State.options is not None


def rank() -> int:
    """Give the number of this process in the job, from 0, which the launcher's variables no longer tell."""
    if State.joined is None:
        return 0
    State.joined.one_process.gave_rank = True
    return State.joined.placement.rank


def world_size() -> int:
    """Give the number of processes in the job."""
    return 1 if State.joined is None else State.joined.placement.world_size


def is_main() -> bool:
    """Tell whether this is rank 0, whose outward effects are the job's."""
    return rank() == 0


def per_rank() -> AbstractContextManager[None]:
    """Let every rank print and write for itself, for what its author means once per rank.

    ``with ddp_patch.per_rank(): torch.save(timings, f"timings-{ddp_patch.rank()}.pt")``. What a rank draws, reads and
    writes inside is its own; batches and models stay those of all ranks, so no rank may use one alone.
    """
    return contextlib.nullcontext() if State.session is None else State.session.per_rank()


def report() -> Report:
    """Tell what was patched, which module became a replica, how loaders are dealt, and what was gathered.

    After ``disable()``, the report of the session that ended.
    """
    from .diagnosis.report import Report  # noqa: PLC0415 — importing the package loads nothing heavy

    if State.session is not None:
        return State.session.report()
    return State.last_report or Report(world_size=1, device="this process's own")


def _stopped() -> None:
    if State.session is not None:
        State.last_report = State.session.report()
    State.session = None


def _is_typed() -> bool:
    from .job import program  # noqa: PLC0415

    return program.is_typed()


def _decorated(function: F, options: dict[str, Any]) -> F:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(
            f"{function.__name__} is a generator function, whose body runs after its call has ended. Write "
            "@ddp_patch.enable above the function that goes through it."
        )
    if inspect.iscoroutinefunction(function):
        return _decorated_coroutine(function, options)  # type: ignore[no-any-return]

    @functools.wraps(function)
    def enabled(*args: Any, **kwargs: Any) -> Any:
        if State.options is None and _is_typed():
            from .remote import launching  # noqa: PLC0415 — imports torch, only now needed

            return launching.run(function, options, args, kwargs)
        with enable(**options):
            return function(*args, **kwargs)

    return enabled  # type: ignore[return-value]


def _decorated_coroutine(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    @functools.wraps(function)
    async def enabled(*args: Any, **kwargs: Any) -> Any:
        if State.options is None and _is_typed():
            raise OptionError(
                f"{function.__name__} is a coroutine function, which a notebook's own loop runs in this process. Write "
                "@ddp_patch.enable above a function that calls asyncio.run()."
            )
        with enable(**options):
            return await function(*args, **kwargs)

    return enabled
