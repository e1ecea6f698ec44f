"""The lines of a script that make what training hangs on: loaders, samplers, optimizers, schedulers, seeds."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.weak import WeakIdKeyDictionary

from ...ledger import script_line
from .record import Record

_CLASSES: tuple[tuple[type, str], ...] = (
    (DataLoader, "loader"),
    (DistributedSampler, "sampler"),
    (Optimizer, "optimizer"),
    (LRScheduler, "scheduler"),
    (DistributedDataParallel, "ddp"),
)
_lines: MutableMapping[Any, str] = WeakIdKeyDictionary()  # beside the objects, whose attributes scripts save


def install(record: Record, local: bool) -> None:
    """Look on from now on.

    Args:
        record: of this rank.
        local: the ranks see their own rows, and may seed and clip by themselves.
    """
    for owner, what in _CLASSES:
        _note_made(owner, what, record)
    if not local:
        return
    # Over gloo it may never come back while DDP's last futures are alive (torch 2.13); ``recorded`` ends the process.
    torch.distributed.destroy_process_group = lambda group=None: None
    modules: list[tuple[Any, str]] = [(torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed")]
    if "numpy" in sys.modules:
        modules.append((sys.modules["numpy"].random, "seed"))
    for module, name in modules:
        _note_seed(module, name, record)
    _note_clipping(record)


def line_of(thing: Any) -> str:
    """Name the line that made a loader, a sampler or an optimizer; empty if it was none of the script's."""
    try:
        return _lines.get(thing, "")
    except TypeError:  # a range or a list, which may be samplers, have no weak references
        return ""


def note_ranks(record: Record) -> None:
    """Note where the script asks ddp_patch for its rank."""
    import ddp_patch  # noqa: PLC0415

    from ... import api  # noqa: PLC0415

    for name in ("rank", "is_main", "world_size", "per_rank"):
        noted = _noted(getattr(api, name), record)
        setattr(api, name, noted)
        setattr(ddp_patch, name, noted)


def _noted(wrapped: Any, record: Record) -> Any:
    @functools.wraps(wrapped)
    def asked() -> Any:
        line = script_line(sys._getframe(1))
        if line.rpartition(":")[0] != "api.py":
            record.once("rank", line=line, name=f"ddp_patch.{wrapped.__name__}")
        return wrapped()

    return asked


def _note_made(owner: Any, what: str, record: Record) -> None:
    wrapped = owner.__init__

    @functools.wraps(wrapped)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        line = script_line()
        wrapped(self, *args, **kwargs)
        _lines.setdefault(self, line)
        record.once("made", what=what, line=line)

    owner.__init__ = init


def _note_seed(module: Any, name: str, record: Record) -> None:
    wrapped = getattr(module, name)

    @functools.wraps(wrapped)
    def seed(*args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *kwargs.values()]
        is_ours = str(sys._getframe(1).f_globals.get("__name__")).startswith("ddp_patch.")
        if arguments and not is_ours and isinstance(arguments[0], (int, float)):
            record.once("seed", line=script_line(), value=arguments[0])
        return wrapped(*args, **kwargs)

    setattr(module, name, seed)


def _note_clipping(record: Record) -> None:
    """Note the norms that are clipped by: ranks that clip before they average clip by different ones."""
    wrapped = torch.nn.utils.clip_grad_norm_

    @functools.wraps(wrapped)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        total = wrapped(*args, **kwargs)
        record.event("clip", line=script_line(), value=float(total))
        return total

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
