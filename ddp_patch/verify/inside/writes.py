"""Files that a script writes: told by name where they are outside of its folder, or where several ranks write one."""

from __future__ import annotations

import functools
import io
import os
import site
import sys
import tempfile
from typing import Any

import torch

from ...errors import DdpPatchError
from ...ledger import script_line
from .record import Record
from .settings import Settings

# As Python has them: ddp_patch's wait for the other ranks.
_open, _replace = io.open, os.replace
_CHANGES = {"os.chmod", "os.chown", "os.truncate", "os.utime", "sqlite3.connect"}  # audit events besides "open"
_MOVES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Writes:
    """Looks on as files are opened to be written."""

    def __init__(self, record: Record, settings: Settings) -> None:
        """Prepare."""
        self._record = record
        self._folder = os.path.join(os.path.realpath(settings.folder), "")
        self._linked = settings.linked
        self._targets = set(settings.linked.values())
        self._kept = tuple(os.path.join(path, "") for path in settings.kept)
        self._local = settings.local
        self._busy = False
        home = os.path.expanduser("~")
        left_alone = [tempfile.gettempdir(), sys.prefix, sys.base_prefix, *site.getsitepackages(), "/dev", "/proc"]
        left_alone += [os.path.join(home, name) for name in (".cache", ".config", ".triton", ".torch")]
        self._left_alone = tuple(os.path.join(os.path.realpath(path), "") for path in left_alone)

    def install(self) -> None:
        """Look on from now on."""
        sys.addaudithook(self._heard)
        wrapped = torch.save

        @functools.wraps(wrapped)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                self._writes(os.fspath(f))  # torch opens it in C++, which nobody hears of
            return wrapped(obj, f, *args, **kwargs)

        torch.save = torch.serialization.save = save

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if (self._kept or self._targets) and not self._busy and event in _CHANGES | _MOVES:
            for path in args:
                if isinstance(path, (str, bytes)):
                    self._refuse(os.path.abspath(os.fsdecode(path)))
        if event in _CHANGES and not self._busy and isinstance(args[0], (str, bytes)):
            self._replace_link(os.path.abspath(os.fsdecode(args[0])))
        if event != "open" or self._busy:
            return
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
        if writes and isinstance(path, (str, bytes)):
            self._writes(path)

    def _writes(self, path: Any) -> None:
        self._busy = True
        try:
            name = os.path.abspath(os.fsdecode(path))
            if "__pycache__" in name:
                return
            self._refuse(name)
            self._replace_link(name)
            where = os.path.realpath(os.path.dirname(name)) + os.sep
            inside = where.startswith(self._folder)
            if inside and self._local:
                relative = os.path.relpath(name, self._folder)
                self._record.once("write", path=relative, line=script_line())
            elif not inside and not where.startswith(self._left_alone):
                self._record.once("outside", path=name, line=script_line())
        finally:
            self._busy = False

    def _refuse(self, name: str) -> None:
        """Raise for what is the user's own, and so large that there is no copy of it."""
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        if name in self._targets or name.startswith(self._kept):
            raise DdpPatchError(
                f"{name} was about to be changed, and is your own: a link leads to it, since it is too large to be "
                "copied, or to a folder above. Have the script write elsewhere, or take it away while you verify."
            )

    def _replace_link(self, name: str) -> None:
        """Put a copy in the place of a link, as the script is about to write to it."""
        if not self._linked:
            return
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        target = self._linked.get(os.path.relpath(name, self._folder))
        if target is None or not os.path.islink(name):
            return
        is_busy, self._busy = self._busy, True
        part = f"{name}.{os.getpid()}"
        with _open(target, "rb") as source, _open(part, "wb") as copy:
            while chunk := source.read(1 << 20):
                copy.write(chunk)
        _replace(part, name)
        self._busy = is_busy
