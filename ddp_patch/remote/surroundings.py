"""What else a function finds in the process that calls it, and has in the ranks: folder, paths, loggers, generators."""

from __future__ import annotations

import importlib.machinery
import linecache
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import generators
from . import logs

_CARRIED = ("PYTHONPATH",)


def seen() -> dict[str, Any]:
    """Tell what it finds; nothing of the script's own types."""
    return {
        "path": list(sys.path),
        "argv": list(sys.argv),
        "folder": os.getcwd(),
        "variables": {name: os.environ.get(name) for name in _CARRIED},
        "cells": {
            name: entry for name, entry in linecache.cache.items() if len(entry) == 4 and not Path(name).exists()
        },
        "program": program(),
        "loggers": logs.seen(),
        "state": state(),
    }


def program() -> tuple[str | None, str | None]:
    """The file of the script, and the module's name where it is run by ``-m``: what it spawns imports it."""
    its = sys.modules["__main__"]
    path, spec = getattr(its, "__file__", None), getattr(its, "__spec__", None)
    return path and os.path.abspath(path), spec and spec.name


def set_up(found: Mapping[str, Any]) -> None:
    """Have this process look so."""
    sys.path[:] = found["path"]
    sys.argv[:] = found["argv"]
    os.chdir(found["folder"])
    for name, value in found["variables"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    linecache.cache.update(found["cells"])
    path, name = found["program"]
    its = sys.modules["__main__"] = types.ModuleType("__main__")
    if path is not None and Path(path).exists():
        its.__file__ = path
    if name is not None:
        its.__spec__ = importlib.machinery.ModuleSpec(name, None)


def state() -> dict[str, Any]:
    """What one process has of torch's and the generators' state, as far as calls change it."""
    return {
        "numpy": "numpy" in sys.modules,
        "generators": generators.states(),
        "default type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "precision": torch.get_float32_matmul_precision(),
    }


def set_state(saved: Mapping[str, Any]) -> None:
    """Go on from there."""
    if saved["numpy"]:
        import numpy  # noqa: F401, PLC0415 — its generator's state is set
    generators.set_states(saved["generators"])
    torch.set_default_dtype(saved["default type"])
    torch.set_grad_enabled(saved["gradients"])
    torch.set_deterministic_debug_mode(saved["deterministic"])
    torch.set_float32_matmul_precision(saved["precision"])
