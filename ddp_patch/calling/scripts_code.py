"""The script's own code, as opposed to Python's and that of installed packages."""

from __future__ import annotations

import argparse
import functools
import sys
import sysconfig
import threading
import types
from pathlib import Path

from ..installed import is_installed

_PATHS = sysconfig.get_paths()
_PYTHONS = tuple({str(Path(_PATHS[key])) for key in ("stdlib", "platstdlib", "purelib", "platlib")})
OURS = str(Path(__file__).parents[1])
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, threading.local, threading.Event)


def is_own(kind: type) -> bool:
    """Tell a class that the script defines, or whose instances hold what it wants."""
    if kind in NAMESPACES:
        return True
    home = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or home is None or is_scripts_file(getattr(home, "__file__", None) or "")


@functools.lru_cache(maxsize=4096)
def is_scripts_file(path: str) -> bool:
    """Tell a file of the script's from those of Python and of installed packages."""
    if not path or path.startswith((OURS, "<frozen", *_PYTHONS)):
        return False
    return not is_installed(path)
