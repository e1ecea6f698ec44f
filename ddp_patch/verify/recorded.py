"""Run a script as ``python`` would and write down what it does: ``python -m ddp_patch.verify.recorded FILE script.py``.

``-m module`` instead of the script runs a module as ``python -m`` would. ``FILE`` holds the settings. ``verify`` starts
this, alone and on every rank.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ..__main__ import _module_loader, _script_loader
from .inside.settings import Settings


def main(argv: Sequence[str]) -> None:
    """Run the script."""
    settings = Settings.read(argv[0])
    is_module = argv[1] == "-m"
    target, *args = argv[2:] if is_module else argv[1:]
    from .inside import double, recorder, seeds  # noqa: PLC0415 — imports torch

    sys.path.insert(0, os.getcwd())  # as python has a folder there; only now, since none of ours or torch's is in it
    seeds.install()
    if settings.float64:
        double.install()
    recording = recorder.Recorder(settings, int(os.environ.get("RANK", "0")))
    recording.install()
    try:
        load, _ = (_module_loader if is_module else _script_loader)(target)  # imports the packages that a module is in
        if settings.alone:
            leave_number_of_ranks()
        elif settings.enable:
            _enable()
        # A syntax error is the script's, like any other.
        code, module = load()
        sys.argv = [str(vars(module)["__file__"]) if is_module else target, *args]
        sys.modules["__main__"] = module
        exec(code, vars(module))
    except SystemExit as error:
        recording.finish("exit", error)
        _leave_torch(settings)
        raise
    except BaseException as error:  # noqa: BLE001 — shown as Python shows it, once it is noted
        recording.finish("error", error)
        traceback = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        _leave_torch(settings)
        raise SystemExit(1) from None
    recording.finish("end", None)
    _leave_torch(settings)


def _enable() -> None:
    from .. import api  # noqa: PLC0415

    api.enable()


def leave_number_of_ranks() -> None:
    """Have an ``enable(nproc=2)`` of the script run on the ranks that there are."""
    import ddp_patch  # noqa: PLC0415

    from .. import api  # noqa: PLC0415

    wrapped: Callable[..., Any] = api.enable

    @functools.wraps(wrapped)
    def enable(*args: Any, **options: Any) -> Any:
        options.pop("nproc", None)
        return wrapped(*args, **options)

    api.enable = ddp_patch.enable = enable


def _leave_torch(settings: Settings) -> None:
    """End a script that distributes itself, whatever it left open: torch aborts processes that end in a group."""
    dist = sys.modules.get("torch.distributed")
    if not settings.local or dist is None or not dist.is_available() or not dist.is_initialized():
        return
    import atexit  # noqa: PLC0415

    if threading.current_thread() is threading.main_thread():
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kind, error, _ = sys.exc_info()
    code = getattr(error, "code", 1) if kind is not None else 0
    os._exit(code if isinstance(code, int) else int(code is not None))


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main(sys.argv[1:])
