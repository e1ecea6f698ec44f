"""A folder for each run, which looks like the user's: what a script reads is there, what it writes stays in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DdpPatchError

_LARGE = 16 << 20  # bytes; larger files are copied last
_COPIED_IN_ALL = 1 << 30  # bytes; what is beyond are links, until Python opens them to write
LEFT_OUT = {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"}
PREFIX = "ddp-patch-verify-"  # of the folder that all runs of one verify are in, which may lie in the working folder
_LINKED_ABOVE = 2  # folders above the working folder whose other entries are there as well, for ../data
_MOST_BEHIND = (
    10_000  # entries of a folder that a link leads to; a larger one stays a link that nobody may write through
)
_MOST_LINKED = 256  # entries; a folder with more holds much else, as /tmp does


@dataclass(frozen=True)
class RunFolder:
    """Where one run takes place."""

    folder: Path  # the working folder
    script: Path
    linked: dict[str, str]  # name in the folder -> the user's file that it is a link to
    kept: list[str]  # folders of the user's that links still lead to
    before: dict[str, tuple[int, int]]  # files that were there: size and time of the last change
    originals: dict[str, tuple[int, int]]  # the same of the user's files that are linked

    def check(self) -> None:
        """Look whether the user's own files are as they were.

        Raises:
            DdpPatchError: for one that the run has changed through its link.
        """
        for path, state in self.originals.items():
            if not os.path.exists(path) or _state(Path(path)) != state:
                raise DdpPatchError(
                    f"{path} was changed during the run: copies of the folder's files would take more than "
                    f"{_COPIED_IN_ALL >> 20:,} MiB, so it was a link, and something other than Python wrote to it. "
                    "Restore it, and run in a folder that holds less"
                )

    def changed(self) -> list[str]:
        """Name the files that were links, and that the run has put something else in the place of."""
        return [name for name in self.linked if not (self.folder / name).is_symlink()]

    def written(self) -> list[str]:
        """Name the files that are new, or others than before."""
        return sorted(name for name, state in _files(self.folder) if self.before.get(name) != state)


def prepare(root: Path, working: Path, script: Path, changed: Collection[str] = ()) -> RunFolder:
    """Make the folder of a run.

    Args:
        root: a new folder, in which it lies under its own name: ``root/home/me/project``.
        working: the user's working folder.
        script: to run; if it lies elsewhere, what lies beside it is there as well.
        changed: files that a run before has changed, by name: copied, however large. Under ddp_patch a checkpoint is
            renamed to what a link leads to.
    """
    linked: dict[str, str] = {}
    folder = _under(root, working)
    above = script.parent if working.is_relative_to(script.parent) and working != script.parent else None
    beside = [] if script.is_relative_to(above or working) else [script.parent]
    copies = _Copy(linked, folder, changed, {tree: _under(root, tree) for tree in (above or working, *beside)})
    copies.copy_all()
    for place in {above or working, *([] if script.is_relative_to(working) else [script.parent])}:
        _link_above(root, place)
    originals = {path: _state(Path(path)) for path in linked.values()}
    return RunFolder(folder, _under(root, script), linked, copies.kept, dict(_files(folder)), originals)


def _under(root: Path, path: Path) -> Path:
    return root / path.relative_to(path.anchor)


class _Copy:
    def __init__(
        self, linked: dict[str, str], working: Path, changed: Collection[str], places: dict[Path, Path]
    ) -> None:
        self.linked, self.working, self.changed, self.bytes = linked, working, changed, 0
        self.places = places  # the user's folders -> their copies
        self.behind: list[tuple[Path, Path]] = []  # folders that links lead to, and where the links are
        self.large: list[tuple[int, str, Path]] = []
        self.kept: list[str] = []

    def copy_all(self) -> None:
        """Copy the folders, then what links in them lead to, then what is large, as long as there is room."""
        for source, target in list(self.places.items()):
            self.copy(source, target)
        while self.behind:
            self._copy_behind(*self.behind.pop(0))
        for each in sorted(self.large):
            self._file(*each)

    def _copy_behind(self, source: Path, target: Path) -> None:
        """Copy what a link leads to: nothing is to be written to the user's through it."""
        place = next((place for place in self.places if source.is_relative_to(place)), None)
        if place is not None and not LEFT_OUT & set(source.relative_to(place).parts):
            target.symlink_to(self.places[place] / source.relative_to(place))
        elif any(place.is_relative_to(source) for place in self.places) or _is_large(source):
            self.kept.append(str(source))
            target.symlink_to(source)
        else:
            self.places[source] = target
            self.copy(source, target)

    def copy(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        if not os.access(source, os.R_OK | os.X_OK):
            return
        for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
            to = target / entry.name
            if os.path.lexists(to) or entry.name in LEFT_OUT or entry.name.startswith(PREFIX):
                continue
            if entry.is_dir(follow_symlinks=False):
                self.copy(Path(entry.path), to)
            elif entry.is_symlink() and entry.is_dir():
                self.behind.append((Path(os.path.realpath(entry.path)), to))
            elif entry.is_file():
                size = entry.stat().st_size
                if size > _LARGE:
                    self.large.append((size, entry.path, to))
                else:
                    self._file(size, entry.path, to)

    def _file(self, size: int, path: str, to: Path) -> None:
        name = os.path.relpath(to, self.working)
        if os.access(path, os.R_OK) and (self.bytes + size <= _COPIED_IN_ALL or name in self.changed):
            self.bytes += size
            shutil.copy2(path, to)
        else:
            self.linked[name] = os.path.realpath(path)
            to.symlink_to(os.path.realpath(path))


def _is_large(folder: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > _MOST_BEHIND:
            return True
    return False


def _link_above(root: Path, folder: Path) -> None:
    for parent in list(folder.parents)[:_LINKED_ABOVE]:
        if parent == Path(parent.anchor):
            return
        try:
            beside = list(os.scandir(parent))
        except OSError:  # of others, who let nobody list it
            continue
        for entry in beside if len(beside) <= _MOST_LINKED else []:
            to = _under(root, Path(entry.path))
            if not os.path.lexists(to) and entry.name not in LEFT_OUT and not entry.name.startswith(PREFIX):
                to.symlink_to(entry.path)


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for where, _, files in os.walk(folder):
        for name in files:
            path = Path(where) / name
            if not path.is_symlink() and path.exists():
                yield str(path.relative_to(folder)), _state(path)


def _state(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns
