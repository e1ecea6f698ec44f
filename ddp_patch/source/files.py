"""Find the scripts and notebooks below the paths that somebody names."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .problems import Problem

SUFFIXES = (".py", ".ipynb")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}


def find(paths: Sequence[str], exclude: Sequence[str] = ()) -> tuple[list[Path], list[Problem]]:
    """List what there is to read, each file once, in the order of the paths and by name inside folders.

    Hidden folders, virtual environments, ``build``, ``dist``, ``site-packages`` and the like are not entered. A file
    that is named itself is taken whatever it is called.

    Args:
        paths: files and folders.
        exclude: patterns as in a shell of what is left out in folders: names (``legacy``) or paths (``vendor/*``).
    """
    found: dict[Path, None] = {}
    problems: list[Problem] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = list(_below(path, exclude, problems))
            found.update(dict.fromkeys(inside))
            if not inside:
                problems.append(Problem(name, 0, 0, "empty", "there is no .py or .ipynb file in this folder"))
        elif path.exists():
            found[path] = None
        else:
            problems.append(Problem(name, 0, 0, "missing", "there is no such file or folder"))
    return list(found), problems


def excluded(path: Path, exclude: Sequence[str]) -> bool:
    """Tell whether a pattern names this path, its end, or a folder that it lies in."""
    text, names = path.as_posix(), path.parts
    return any(
        any(fnmatch.fnmatch(part, pattern.rstrip("/")) for part in names)
        or fnmatch.fnmatch(text, pattern)
        or fnmatch.fnmatch(text, f"*/{pattern}")
        for pattern in exclude
    )


def _is_out(path: Path, folder: Path, exclude: Sequence[str]) -> bool:
    """Patterns of names count below the folder that is searched, those of paths wherever they end."""
    paths = [pattern.rstrip("/") for pattern in exclude if "/" in pattern.rstrip("/")]
    whole = path.absolute().as_posix()
    return excluded(path.relative_to(folder), exclude) or any(fnmatch.fnmatch(whole, f"*/{each}") for each in paths)


def _below(folder: Path, exclude: Sequence[str], problems: list[Problem]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        problems.append(Problem(str(error.filename), 0, 0, "unreadable", f"cannot be read: {error.strerror}"))

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
            and not _is_out(Path(root) / name, folder, exclude)
        )
        for name in sorted(files):
            path = Path(root) / name
            if path.suffix in SUFFIXES and not _is_out(path, folder, exclude):
                yield path
