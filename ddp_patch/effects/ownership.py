"""Which effects are the script's, to happen once, and which are a rank's own: caches of libraries, temporary files."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .callers import PACKAGE_ROOT, TRACKERS, frames, is_ours, is_python, kind, top

_WRAPPERS = tuple(os.path.join(PACKAGE_ROOT, room, "") for room in ("patches", "effects"))  # frames of what is patched
# Trackers put themselves in front of these, to see what the script writes: on rank 0, and before its own code.
_HOOKED = (
    *("matplotlib", "joblib", "sklearn", "xgboost", "lightgbm", "catboost", "fire", "hydra", "absl", "tensorflow"),
    *("keras", "transformers", "lightning", "pytorch_lightning", "fastai"),
)
# What these write, they were given by whoever called them.
_CONTENT = ("numpy", "pandas", "PIL", "matplotlib", "imageio", "skimage", "yaml", "openpyxl", "h5py", "safetensors")
_LOCKERS = ("filelock", "portalocker", "fasteners")  # what these lock, they were given by whoever called them
_COMPILERS = ("torch._dynamo.convert_frame", "torch._inductor", "triton")  # torch 2.13
_CALLERS = ("threading", "concurrent", "contextlib")  # these call what they were handed
# These have commands write what the script asks for.
_COMMANDERS = ("matplotlib", "imageio", "imageio_ffmpeg", "moviepy", "skvideo", "pydub")
_RUNNERS = ("ffmpeg", "git", "invoke", "plumbum")  # they run what they are told to, for whoever tells them
_CACHES = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    *("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX", "CUDA_CACHE_PATH"),
)


_SYSTEM = ("/dev/", "/proc/", "/sys/")
_DISKS_IN_MEMORY = ("/dev/shm/",)


class Ownership:
    """Tells the script's effects, and remembers which files this process made for itself."""

    def __init__(self) -> None:
        """Look up where caches are."""
        home = Path.home()
        self._cache_roots = (sys.prefix, sys.base_prefix, *map(str, (home / ".cache", home / ".config")))
        self._scratch = os.path.join(_absolute(tempfile.gettempdir()), "")
        self._temporary: set[str] = set()

    def made(self, path: Any) -> None:
        """Remember a temporary file or folder of this process."""
        self._temporary.add(_absolute(path))

    def place(self, folder: Any, is_made: bool) -> Any:
        """Where a rank other than 0 makes its own temporary files, when the script asks for one of its folders.

        Args:
            folder: that the script names.
            is_made: by rank 0, maybe where this rank does not see it.
        """
        if (
            folder is None
            or not (is_made or os.path.isdir(folder))
            or not self.covers(os.path.join(os.fsdecode(folder), "x"), passing=("tempfile",))
        ):
            return folder
        return os.fsencode(self._scratch) if isinstance(folder, bytes) else self._scratch

    def is_temporary(self, path: Any) -> bool:
        """Tell what this process made for itself, and what lies in it."""
        absolute = _absolute(path)
        return bool(self._temporary) and any(part in self._temporary for part in (absolute, *above(absolute)))

    def covers(self, *paths: Any, passing: Sequence[str] = ()) -> bool:
        """Tell whether an effect on one of these is the script's.

        Args:
            paths: of files or folders; an open descriptor is the rank's own.
            passing: modules that only pass on who calls them.
        """
        named = [_absolute(path) for path in paths if isinstance(path, (str, bytes, os.PathLike))]
        if not named:
            return False
        kind = _writer(passing)
        if kind == "own":
            return False
        return any(not self._is_left_alone(path, kind) for path in named)

    def covers_calls(self, *through: str) -> bool:
        """Tell whether the script itself is calling, not a library, nor Python's on its behalf.

        ``platform.processor()`` runs a command once and remembers what it said, which one rank may know already.

        Args:
            through: modules of Python that it may call through.
        """
        frame = self._asking(through)
        return frame is not None and (kind(frame) == "script" or top(frame) in _COMMANDERS)

    def covers_commands(self) -> bool:
        """Tell whether the script has a command run, itself or by what it handed it to: a thread, an exit stack."""
        through = ("subprocess", "os", *_CALLERS, *_RUNNERS)
        return self.covers_calls(*through) or (not self.asks_itself() and self.caller(*through) == "")

    @staticmethod
    def asks_itself() -> bool:
        """Tell whether it is this package that looks at a file, maybe on one rank alone, through Python's functions."""
        is_past = False  # the wrapper of what was called
        for frame in frames():
            is_past = is_past or not is_ours(frame)
            if is_past and not is_python(frame.f_code.co_filename):
                return is_ours(frame)
        return False

    def covers_locks(self, path: str | None) -> bool:
        """Tell whether the script locks, or a library on its behalf: not its cache, which every rank has.

        Args:
            path: of what is locked, if that is known.
        """
        kinds = (kind(frame) for frame in frames())
        if next((found for found in kinds if found in ("own", "script")), "") != "script":  # compilers, as they need
            return False
        return path is None or _writer(_LOCKERS) == "script" or not self._is_of_cache(path)

    def covers_seeds(self) -> bool:
        """Tell whether the script seeds a generator, or a library does for it; not Python or a tracker for itself."""
        frame = self._asking(("numpy",))
        return frame is not None and (kind(frame) in ("script", "library") or top(frame) == "accelerate")

    def caller(self, *through: str) -> str:
        """Tell who is calling: "script", "library", "own" or "between"; empty if nobody is, as at exit."""
        return next((kind(frame) for frame in frames() if self._is_caller(frame, through)), "")

    def _asking(self, through: tuple[str, ...]) -> FrameType | None:
        """Who calls what is patched; None if ddp_patch does, for itself, or a compiler: a rank's own generators."""
        for frame in frames():
            if self._is_caller(frame, through):
                return None if kind(frame) == "library" and _is_for_compilers(frame) else frame
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE_ROOT) and not name.startswith(_WRAPPERS):
                return None
        return None

    @staticmethod
    def _is_caller(frame: FrameType, through: tuple[str, ...]) -> bool:
        return not frame.f_code.co_filename.startswith(PACKAGE_ROOT) and top(frame) not in ("wrapt", *through)

    def _is_left_alone(self, path: str, kind: str) -> bool:
        if self.is_temporary(path) or "__pycache__" in path:
            return True
        if path.startswith(_SYSTEM) and not path.startswith(_DISKS_IN_MEMORY):
            return True
        if kind == "script":
            return False
        if self._is_of_cache(path):
            return True
        return kind == "library" and path.startswith(self._scratch) and not path.startswith(_here())

    def _is_of_cache(self, path: str) -> bool:
        # The script may set the variables below the line.
        variables = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        caches = tuple(os.path.join(_absolute(root), "") for root in (*self._cache_roots, *variables))
        return os.path.join(path, "").startswith(caches) and not _here().startswith(caches)


def _is_for_compilers(frame: FrameType | None) -> bool:
    """Tell what a compiler has a library do, maybe on one rank alone: it is imported when it is needed first."""
    while frame is not None and kind(frame) != "script":
        if str(frame.f_globals.get("__name__")).startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _here() -> str:
    """Give the working directory, which may be gone."""
    return os.path.join(os.path.abspath("."), "") if os.path.isdir(".") else ""


def _writer(passing: Sequence[str]) -> str:
    """Tell who is writing.

    Returns:
        "script", "library", "content" for a library that writes what it was given (and caches of its own), or "own" for
        what Python and libraries write for this process.
    """
    writer, library = "", ""
    for frame in frames():
        found = "between" if top(frame) in passing else kind(frame)
        if found == "library":
            writer, library = found, top(frame)
        elif found == "own" and not (writer and (top(frame) not in TRACKERS or library in _HOOKED)):
            return found
        elif found == "script":
            return "content" if library in _CONTENT else writer or found
    return writer or "script"  # without any: what the script left to run at exit, or to a pool of threads


def above(path: str) -> Iterator[str]:
    """Give the folders that a path is in, the innermost first."""
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
