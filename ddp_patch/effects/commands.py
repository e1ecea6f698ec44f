"""Commands that a script runs: once, on rank 0, with the same outcome on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ..structure import map_leaves
from .descriptors import path_of
from .files import Files
from .ownership import Ownership
from .pipes import Pipe
from .rank_zero import RankZero
from .temporary import TemporaryPlaces


class Commands:
    """Runs commands for the script."""

    def __init__(self, rank_zero: RankZero, ownership: Ownership, files: Files, places: TemporaryPlaces) -> None:
        """Start with no command run.

        Args:
            rank_zero: who acts for all ranks.
            ownership: tells who is calling.
            files: of the script.
            places: temporary ones, which each rank has by itself.
        """
        self._places = places
        self._files = files
        self._rank_zero = rank_zero
        self._ownership = ownership
        self._pids: set[int] = set()  # of commands that all ranks hold
        # Those that may be running.
        self._running: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def call(self, what: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a command to its end, and give what it gave to every rank.

        Raises:
            Exception: on every rank, what rank 0 gets.
        """
        is_silent = self._rank_zero.is_silent()
        if not (is_silent or self._rank_zero.in_lockstep()) or not self._ownership.covers_commands():
            return real(*args, **kwargs)
        if is_silent:
            return _nothing(what, args, kwargs)
        self._files.written.commanded()

        def leaders() -> Any:
            before = self._places.look((args, kwargs))
            return real(*args, **kwargs), self._places.changes(before)

        result, changes = self._rank_zero.barrier_call(what, leaders)
        self._places.follow(changes)
        return result

    def joined(self, what: str, *through: str) -> None:
        """Wait until rank 0 has joined what threads do for the script as well: what they wrote is there.

        Args:
            what: the script waits for.
            through: modules that it may wait through. Not one that waits for as many threads as it needed.
        """
        if self._rank_zero.in_lockstep() and self._ownership.covers_calls(*through):
            self._rank_zero.call(what, lambda: None)

    def ended(self, what: str, real: Callable[[], bool], when_ended: bool, wait: Callable[[], Any]) -> bool:
        """Tell whether what a thread does for the script has ended: on rank 0, and then on this rank as well.

        Args:
            what: the script asks.
            real: asks it of this rank's.
            when_ended: the answer of one that has ended.
            wait: for this rank's.
        """
        if not self._rank_zero.in_lockstep() or not self._ownership.covers_calls():
            return real()
        answer = bool(self._rank_zero.call(what, real))
        if answer is when_ended and real() is not when_ended:
            with self._rank_zero.alone():
                wait()
        return answer

    def lock(self, what: str, real: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Lock a file: rank 0 has the lock for all, which come to it and go on together."""
        if self._rank_zero.is_silent():
            return None
        if not self._rank_zero.in_lockstep() or not self._ownership.covers_locks(path_of(next(iter(args), None))):
            return real(*args, **kwargs)
        return self._rank_zero.barrier_call(what, lambda: real(*args, **kwargs))

    def start(self, real: Callable[..., None], process: Any, args: Any, kwargs: Any) -> None:
        """Start a command, of which the other ranks get a stand-in."""
        is_silent = self._rank_zero.is_silent()
        if not (is_silent or self._rank_zero.in_lockstep()) or not self._ownership.covers_commands():
            real(*args, **kwargs)
            return
        if is_silent:  # a command that says nothing, with the pipes that were asked for
            real([sys.executable, "-S", "-c", ""], *args[1:], **{**_without_command(kwargs), "shell": False})
            return
        self._files.written.commanded()
        args, kwargs = map_leaves(lambda leaf: leaf.real if isinstance(leaf, Pipe) else leaf, (args, kwargs))
        if self._rank_zero.is_leader:
            vars(process)[_BEFORE] = self._places.look((args, kwargs))
            shown: dict[str, Any] = self._rank_zero.barrier_call(
                "subprocess.Popen", lambda: _started(real, process, args, kwargs)
            )
        else:
            # What subprocess.Popen asks when the session has ended: nobody's child, and so one that has ended well.
            vars(process).update(_child_created=False, _waitpid_lock=threading.Lock())
            shown = self._rank_zero.barrier_call("subprocess.Popen", lambda: None)
            vars(process).update(shown, returncode=None, stdin=None, stdout=None, stderr=None)
        vars(process)[_SHARED] = True
        self._pids.add(process.pid)
        self._running[process.pid] = process
        for name in ("stdin", "stdout", "stderr"):
            if shown[name]:
                setattr(process, name, Pipe(self._rank_zero, getattr(process, name), name, bool(shown["text_mode"])))

    def holds(self, process: Any) -> bool:
        """Tell whether all ranks hold a command, and come to what is asked of it now."""
        return _SHARED in vars(process) and self._rank_zero.in_lockstep()

    def ask(self, what: str, real: Callable[..., Any], process: Any, args: Any, kwargs: Any) -> Any:
        """Ask, or tell, a command something."""
        if not vars(process).get(_SHARED):
            return real(*args, **kwargs)
        if not self._rank_zero.in_lockstep():
            if self._rank_zero.is_leader:
                return real(*args, **kwargs)
            return (None, None) if what == "communicate" else 0  # of a thread, that must not wait for ever

        def leaders() -> Any:
            pipes = {name: getattr(process, name) for name in ("stdin", "stdout", "stderr")}
            vars(process).update({name: getattr(pipe, "real", pipe) for name, pipe in pipes.items()})
            try:
                result = real(*args, **kwargs)
                before = None if process.returncode is None else vars(process).pop(_BEFORE, None)
                # Of others as well: plumbum has the last of several that are piped wait for all.
                codes = {pid: command.returncode for pid, command in self._running.items()}
                return result, codes, [] if before is None else self._places.changes(before)
            finally:
                vars(process).update(pipes)

        self._files.written.commanded()
        result, codes, changes = self._rank_zero.call(f"subprocess.Popen.{what}", leaders)
        for pipe in (process.stdin, process.stdout, process.stderr) if what == "communicate" else ():
            if isinstance(pipe, Pipe):
                pipe.ended()
        for pid, code in codes.items():
            if code is not None and pid in self._running:
                self._running.pop(pid).returncode = code
        self._places.follow(changes)
        return result

    def wait_for(self, real: Callable[[int, int], Any], pid: int, options: int) -> Any:
        """Wait for a process, as ``os.waitpid`` does: for a command that all ranks hold, rank 0 waits."""
        if pid in self._pids and self._rank_zero.in_lockstep():
            return self._rank_zero.call("os.waitpid", lambda: real(pid, options))
        return real(pid, options)

    def signal(self, what: str, real: Callable[[int, int], None], pid: int, number: int) -> None:
        """Send a signal: to a command that all ranks hold, once."""
        if pid in self._pids and self._rank_zero.in_lockstep():
            self._rank_zero.call(what, lambda: real(pid, number))
        elif pid not in self._pids or not self._rank_zero.is_silent():
            real(pid, number)


_SHARED = "_ddp_patch_shared"
_BEFORE = "_ddp_patch_before"  # what was in temporary places


def _nothing(what: str, args: Any, kwargs: Any) -> Any:
    """What a thread of another rank gets in place of rank 0's command: success, and no output."""
    if what == "invoke.run":
        return sys.modules["invoke"].Result()
    is_text = any(kwargs.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
    nothing = "" if is_text else b""
    pipes = kwargs.get("capture_output") or kwargs.get("stdout") == subprocess.PIPE
    results: dict[str, Any] = {
        "subprocess.run": subprocess.CompletedProcess(
            args[0] if args else kwargs.get("args"), 0, nothing if pipes else None, nothing if pipes else None
        ),
        "subprocess.check_output": nothing,
        "subprocess.getoutput": "",
        "subprocess.getstatusoutput": (0, ""),
    }
    return results.get(what, 0)


def _without_command(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("args", "shell", "executable")}


def _started(real: Callable[..., None], process: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    real(*args, **kwargs)
    shown = {name: getattr(process, name, None) for name in ("args", "pid", "text_mode", "encoding", "errors")}
    pipes = {name: getattr(process, name) is not None for name in ("stdin", "stdout", "stderr")}
    return {**shown, **pipes}


FUNCTIONS = {
    subprocess: ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    os: ("system",),
}
METHODS = ("wait", "poll", "communicate", "send_signal", "terminate", "kill")
