"""Whose code is running: the script's, a library's, or Python's own."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

from ..installed import is_installed

PACKAGE_ROOT = str(Path(__file__).parent.parent)
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(os.__file__).parent)})
# Python's own machinery: what it writes is of this process.
_MACHINERY = ("importlib", "multiprocessing", "concurrent", "tempfile", "linecache", "tokenize", "ctypes", "site")
# Libraries that write what belongs to the process: compiled code, state of their own. What the script saves through
# torch and the trackers has patches of its own.
_OWN_WRITERS = (
    *("torch", "torchgen", "triton", "numba", "llvmlite", "accelerate"),
    *("IPython", "ipykernel", "debugpy", "coverage", "pytest", "_pytest", "execnet", "xdist"),
    *("tensorboard", "tensorboardX"),
)
_ASKED = ("torch.onnx", "IPython.core.magics")  # parts of these that write what they are asked for
# What these have other libraries write is theirs as well: rank 0 alone has them.
TRACKERS = ("wandb", "mlflow", "comet_ml", "clearml", "visdom")


def kind(frame: FrameType) -> str:
    """Tell whose code this is; "between" for what passes on what others ask for."""
    name = frame.f_code.co_filename
    module = top(frame)
    if is_ours(frame):
        return "between"
    if is_installed(name):
        is_asked = str(frame.f_globals.get("__name__", "")).startswith(_ASKED)
        if (module in _OWN_WRITERS or module in TRACKERS) and not is_asked:
            return "own"
        return "script" if module == _program() else "library"
    if is_python(name):
        if str(frame.f_globals.get("__name__")) == "concurrent.futures.thread":
            return "between"
        return "own" if module in _MACHINERY or name.startswith("<frozen importlib") else "between"
    return "script"


def is_ours(frame: FrameType) -> bool:
    """Tell whether this is code of this package, or what it patches with."""
    # Methods that dataclasses make have a file of no name.
    return frame.f_code.co_filename.startswith(PACKAGE_ROOT) or top(frame) in ("ddp_patch", "wrapt")


def is_python(name: str) -> bool:
    """Tell a file of Python's own; packages are installed in a folder of its folder."""
    return name.startswith(("<frozen", *_STANDARD)) and not is_installed(name)


def top(frame: FrameType) -> str:
    """Give the package of a frame's code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _program() -> str:
    """Top package of a program that is installed, and run by ``-m`` or by its command."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return str(spec.name).partition(".")[0] if spec is not None else _package_of(getattr(main, "__file__", None) or "")


@functools.lru_cache(maxsize=8)
def _package_of(file: str) -> str:
    """Tell whose command a file is, by what its package said when it was installed."""
    if not os.path.isabs(file):  # none at all; the working directory may be gone
        return ""
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    places = map(os.path.realpath, (sysconfig.get_path("scripts"), user, os.path.dirname(sys.executable)))
    folder, name = os.path.split(os.path.realpath(file))
    if folder not in places:
        return ""
    return next((point.module.partition(".")[0] for point in entry_points(group="console_scripts", name=name)), "")


def frames() -> Iterator[FrameType]:
    """Give the frames that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
