"""What each rank runs: versions and the script, which have to be the same on all hosts."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from ..errors import LaunchError
from ..state import State
from ..version import __version__

SCRIPT = "the script"
ORDER = "the order of sets of strings"
_WAYS = {
    "Python": "Use Python {} on all hosts",
    "torch": "Write on all hosts: pip install torch=={}",
    "accelerate": "Write on all hosts: pip install accelerate=={}",
    "ddp_patch": "Install ddp_patch {} on all hosts",
    ORDER: "Write on all hosts, or have the launcher hand it on: export PYTHONHASHSEED=0",
    SCRIPT: "Copy the script to all hosts anew, or start it on all from a disk that they share",
}
_DIGITS = 12  # of a text's sum, in a message
_NAMED = 8  # hosts in a message
_UNUSABLE = "CUDA initialization:"  # what torch 2.13 warns, c10/cuda/CUDAFunctions.cpp
_SEVERAL = "NCCL_MULTI_RANK_GPU_ENABLE"
_SEVERAL_SINCE = 23000  # 2.30, as ncclGetVersion has it


def versions() -> tuple[tuple[str, str], ...]:
    """Give what this rank runs, by name."""
    python = ".".join(map(str, sys.version_info[:2]))
    found = {"ddp_patch": __version__, "torch": str(torch.__version__), "accelerate": version("accelerate")}
    return ("Python", python), *found.items(), *_script()


def said_of_cuda(environ: Mapping[str, str] = os.environ) -> str:
    """Give torch's reason why GPUs that it was built for cannot be used; empty where there are none, or they can.

    A driver that is too old looks like a host without GPUs, but for a warning of the first to ask in a process.
    """
    if torch.version.cuda is None or environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    reasons = [text for text in (str(warning.message) for warning in said) if text.startswith(_UNUSABLE)]
    return reasons[0].removeprefix(_UNUSABLE).strip() if reasons else ""


def nccl_takes_several(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether NCCL lets several ranks have one GPU: it is told to, and can (since 2.30)."""
    if environ.get(_SEVERAL, "0") != "1":
        return False
    found = ctypes.c_int()  # torch.cuda.nccl says what torch was built with
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    return found.value >= _SEVERAL_SINCE


def refuse_others(ranks: Sequence[tuple[str, tuple[tuple[str, str], ...]]]) -> None:
    """Refuse ranks that run something else than rank 0.

    Args:
        ranks: of each its host, and what it runs.

    Raises:
        LaunchError: on every rank, with the hosts of each version.
    """
    names = dict.fromkeys(name for _, runs in ranks for name, _ in runs)
    for name in names:
        hosts: dict[str, dict[str, None]] = {}
        for host, runs in ranks:
            hosts.setdefault(dict(runs).get(name, "unknown"), {})[host] = None
        if len(hosts) > 1:
            said = "; ".join(f"{name} {what} on {', '.join([*its][:_NAMED])}" for what, its in hosts.items())
            way = _WAYS[name].format(next(iter(hosts)))
            raise LaunchError(
                f"The ranks do not run the same: {said}. They would part, or compute other numbers. {way}."
            )


def _script() -> tuple[tuple[str, str], ...]:
    path = State.script or getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return ()
    with contextlib.suppress(OSError):  # it is gone, or lies in an archive
        text = Path(path).read_bytes()
        return ((SCRIPT, f"{os.path.basename(path)} (sha256 {hashlib.sha256(text).hexdigest()[:_DIGITS]})"),)
    return ()
