"""Which files belong to installed packages, wherever these are: the others are the script's, or Python's own."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

_FOLDERS = ("site-packages", "dist-packages")


@functools.lru_cache(maxsize=8192)
def is_installed(path: str) -> bool:
    """Tell a file of an installed package, and of torch, which some build where its source is.

    Args:
        path: of the file, as Python names it.
    """
    return any(part in _FOLDERS for part in Path(path).parts) or path.startswith(_others(tuple(sys.path)))


@functools.lru_cache(maxsize=8)
def _others(searched: tuple[str, ...]) -> tuple[str, ...]:
    """Give further folders of packages: torch's, and those that pip installed to by ``--target``."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    # The script's folder is its own, whatever was installed there.
    own = {os.path.realpath(folder) for folder in (searched[0] if searched else "", os.curdir)}
    found = [folder for folder in searched if os.path.realpath(folder) not in own and _has_packages(folder)]
    return tuple(os.path.join(folder, "") for folder in [*found, *([os.path.dirname(torch)] if torch else [])])


def _has_packages(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder or os.curdir))
    except OSError:  # a zip file, or none at all
        return False
