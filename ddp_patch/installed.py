"""Which files belong to installed packages, wherever these are: the others are the script's, or Python's own."""

from __future__ import annotations

import functools
import io
import os
import sys
from pathlib import Path

_FOLDERS = ("site-packages", "dist-packages")
_INFO = ".dist-info"


class _Below:
    """Functions as they were before a session patched them, which asks in its wrappers whose file one is."""

    listed = staticmethod(os.listdir)


@functools.lru_cache(maxsize=8192)
def is_installed(path: str) -> bool:
    """Tell a file of an installed package, and of torch, which some build where its source is.

    Args:
        path: of the file, as Python names it.
    """
    return any(part in _FOLDERS for part in Path(path).parts) or path.startswith(_others(tuple(sys.path)))


@functools.lru_cache(maxsize=8)
def _others(searched: tuple[str, ...]) -> tuple[str, ...]:
    """Give what else packages' files begin with: torch's, and those that ``pip install --target`` put somewhere."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    found = [] if torch is None else [os.path.join(os.path.dirname(torch), "")]
    for folder in searched:
        if not any(part in _FOLDERS for part in Path(folder).parts):
            found += [os.path.join(folder, name) for name in _packages_in(folder)]
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _packages_in(folder: str) -> frozenset[str]:
    """Name the packages and modules that were installed to a folder, by what their installer noted of them."""
    try:
        infos = [name for name in _Below.listed(folder or os.curdir) if name.endswith(_INFO)]
    except OSError:  # a zip file, or none at all
        return frozenset()
    found: set[str] = set()
    for info in infos:
        try:
            with io.FileIO(os.path.join(folder, info, "RECORD")) as record:  # below open(), which is patched
                lines = record.readall().decode(errors="replace").splitlines()
        except OSError:  # of a project that is worked on
            continue
        for line in lines:
            top, slash, _ = line.partition(",")[0].partition("/")
            if top != ".." and not top.endswith((_INFO, ".pth")):
                found.add(top + slash)
    return frozenset(found - {""})
