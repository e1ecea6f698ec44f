"""``python -m ddp_patch verify``: ask, tell, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from ..errors import DdpPatchError, OptionError
from . import process, progress
from .arguments import USAGE, VerifyRequest, enables, parse, uses
from .run_folder import PREFIX
from .runs import FinishedRun, Launcher, Spec, Start, perform
from .verdict import Verdict


def command(argv: Sequence[str], start: Start = process.run) -> int:
    """Verify a script; gives the exit code.

    Args:
        argv: without ``verify`` itself.
        start: runs a command.
    """
    try:
        request = parse(argv)
        if request is None:
            sys.stdout.write(USAGE)
            return 0
        _check_places(request)
        with ended_by_signals(), _scratch() as root:
            verdicts = list(verify(request, root, start))
            code = max((verdict.code for verdict in verdicts), key=lambda code: (code == 1, code))
            _tell(request, verdicts, shlex.join(["python", "-m", "ddp_patch", "verify", *argv]), code)
            return code
    except DdpPatchError as error:
        sys.stderr.write(f"python -m ddp_patch verify: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"python -m ddp_patch verify: {error}. Is the disk full, or the folder gone?\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("python -m ddp_patch verify: stopped; what it had started is ended.\n")
        return 128 + signal.SIGINT


def verify(request: VerifyRequest, root: Path, start: Start = process.run) -> Iterator[Verdict]:
    """Verify a script on each number of ranks that is asked for.

    Args:
        request: what is asked.
        root: an empty folder.
        start: runs a command.
    """
    run = _runner(request, root, start)
    launcher = _launcher(request)
    has_line = enables(request.script)
    if request.against is not None and launcher != "ddp_patch":
        from .against import Against  # noqa: PLC0415

        inquiry = Against(request, launcher, run)
        for nproc in request.nproc:
            yield inquiry.ask(nproc)
        return
    from .inquiry import Inquiry  # noqa: PLC0415

    spec = Spec(
        script=request.script,
        module=request.module,
        args=request.args,
        launcher="ddp_patch",
        has_line=has_line,
        steps=request.steps,
        float64=request.float64,
    )
    asked = Inquiry(spec, run, request.against)
    for nproc in request.nproc:
        yield asked.ask(nproc)


def _launcher(request: VerifyRequest) -> Launcher:
    if request.against is None or enables(request.script):
        return "ddp_patch"
    return "accelerate" if uses(request.script, "accelerate") else "torchrun"


def _runner(request: VerifyRequest, root: Path, start: Start) -> Callable[[Spec], FinishedRun]:
    working = Path.cwd()
    threads = max(1, (os.cpu_count() or 1) // max(request.nproc))
    count = 0
    changed: set[str] = set()

    def run(spec: Spec) -> FinishedRun:
        nonlocal count
        count += 1
        folder = root / str(count)
        folder.mkdir()
        with progress.running(f"{spec.script.name}, {spec.name}"):
            done = perform(spec, folder, working, request.timeout, threads, start, changed)
        changed.update(done.place.changed())
        return done

    return run


def _check_places(request: VerifyRequest) -> None:
    """Refuse a place for the report before hours are spent."""
    places = [] if request.report is None else [request.report]
    if request.json not in (None, "-"):
        places.append(Path(str(request.json)).parent)
    for place in places:
        above = next(folder for folder in (place, *place.resolve().parents) if folder.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise OptionError(f"{place} cannot be written to. Name another folder for the report.")


def _tell(request: VerifyRequest, verdicts: Sequence[Verdict], line: str, code: int) -> None:
    from . import report  # noqa: PLC0415

    if request.json == "-":
        sys.stdout.write(report.as_json(verdicts, line, code))
    else:
        sys.stdout.write(report.summary(verdicts, request.script.name))
    if request.report is not None:
        request.report.mkdir(parents=True, exist_ok=True)
        _write(request.report / "verify.md", report.markdown(verdicts, line))
        _write(request.report / "verify.json", report.as_json(verdicts, line, code))
    if request.json not in (None, "-"):
        _write(Path(str(request.json)), report.as_json(verdicts, line, code))


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and a closed terminal end it as Ctrl-C does: with everything that it started."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
