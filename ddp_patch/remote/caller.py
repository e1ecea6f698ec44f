"""The process that calls: it starts the ranks, shows what they say, and takes what they leave."""

from __future__ import annotations

import codecs
import contextlib
import os
import pickle
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import LaunchError
from ..job.relaunch import agent, cores, worker_environment
from . import changes, logs, parcel, surroundings

_LOOK = 0.1  # seconds between two looks whether the ranks have ended
_LAST_WORDS = 1.0  # seconds for what is in the pipes when they have: a process of the function's may hold them open
_END_WAIT = 20.0  # seconds, in which ranks end that are told to
_CHUNK = 1 << 16


def call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
) -> Any:
    """Run a function on new processes and wait for them.

    Args:
        function: to call.
        args: for it.
        kwargs: for it.
        options: of ``enable``, with nproc.

    Raises:
        LaunchError: for what cannot be handed over, or if a rank was killed.
    """
    packed, tracked = parcel.pack(function, args, kwargs)
    folder = Path(tempfile.mkdtemp(prefix="ddp_patch_call_"))
    try:
        found = {**surroundings.seen(), "options": dict(options)}
        (folder / "call").write_bytes(pickle.dumps((found, packed)))
        process = _start(folder, options["nproc"])
        try:
            _show(process)
        finally:
            _end(process)
        logs.go_on_at_the_end()
        return _taken(folder, process.returncode, tracked, getattr(function, "__name__", str(function)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, nproc: int) -> subprocess.Popen[bytes]:
    environ = worker_environment(os.environ, nproc, cores())
    package = str(Path(__file__).parents[2])
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), package)))
    environ["DDP_PATCH_CALLER"] = str(os.getpid())
    flags = [*subprocess._args_from_interpreter_flags(), "-u"]  # type: ignore[attr-defined]  # as multiprocessing does
    rank = [sys.executable, *flags, "-m", "ddp_patch.remote.rank", str(folder)]
    return subprocess.Popen(
        [*agent(), str(nproc), *rank],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes here alone
    )


def _show(process: subprocess.Popen[bytes]) -> None:
    """Pass on what the ranks say, as it comes, until they have ended."""
    decoders: dict[Any, tuple[str, codecs.IncrementalDecoder]] = {}
    ended_at = None
    with selectors.DefaultSelector() as selector:
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            decoders[stream] = (name, codecs.getincrementaldecoder("utf-8")("replace"))
            selector.register(stream, selectors.EVENT_READ)  # type: ignore[arg-type]
        while selector.get_map() and (ended_at is None or time.monotonic() - ended_at < _LAST_WORDS):
            ready = selector.select(_LOOK)
            for key, _ in ready:
                name, decoder = decoders[key.fileobj]
                said = os.read(key.fd, _CHUNK)
                shown = getattr(sys, name)  # asked each time: a cell may redirect it
                shown.write(decoder.decode(said, final=not said))
                shown.flush()
                if not said:
                    selector.unregister(key.fileobj)
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()
            elif ended_at is not None and not ready:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of the ranks, also when this process was interrupted."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # torch's agent ends its ranks
            process.wait(_END_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()  # and the system its ranks, with it
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        raise
    finally:
        for stream in (process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def _taken(folder: Path, code: int, tracked: list[Any], name: str) -> Any:
    parts = [path.read_bytes() for path in (folder / "changed", folder / "result") if path.exists()]
    came = parcel.unpickler(tracked, b"".join(parts))
    if parts:
        changed, state = came.load()
        changes.make(tracked, changed)
        surroundings.set_state(state)
    failed = sorted(folder.glob("error.*"), key=lambda path: path.stat().st_mtime_ns)
    if failed:
        raise parcel.unpack_error(tracked, failed[0].read_bytes())
    if code or len(parts) < 2:
        raise LaunchError(
            f"ddp_patch.launch({name}): the ranks ended with exit code {code} and without a result: one was killed, "
            "for want of memory for one thing, or left by os._exit. Look at what they printed."
        )
    return came.load()
