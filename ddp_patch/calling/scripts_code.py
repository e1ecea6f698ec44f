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


def is_generated(kind: type) -> bool:
    """Tell a class that torch.fx (torch 2.13) made for one graph, whose forward may call functions of the script."""
    return kind.__module__ == "torch.fx.graph_module" and "<locals>" in kind.__qualname__


def is_scripts_code(path: str) -> bool:
    """Tell code of the script's, and what torch.fx generated, which it names after the place that it traced."""
    return path.startswith("<eval_with_key>") or is_scripts_file(path)


def is_torchs(kind: type) -> bool:
    """Tell a class that torch wrote."""
    return kind.__module__.startswith("torch.") and not is_generated(kind)


@functools.lru_cache(maxsize=4096)
def is_scripts_file(path: str) -> bool:
    """Tell a file of the script's from those of Python and of installed packages."""
    if not path or path.startswith((OURS, "<frozen", *_PYTHONS)):
        return False
    return not is_installed(path)
