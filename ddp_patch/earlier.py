"""What a script did before ``enable()``: optimizers are adopted, what ran is refused."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter  # the only name that a loader's iterators share

from .errors import OrderError
from .job.job import Job
from .ledger import script_line


def find_used(job: Job) -> list[Optimizer]:
    """Look for what the script did before: its optimizers are adopted, anything that ran is refused.

    Raises:
        OrderError: after something that one process would have done with whole batches, naming it.
    """
    gc.collect()  # cycles that nobody holds any more are not in use
    optimizers = []
    for candidate in _candidates():
        reference = job.trained.get(id(candidate))
        if isinstance(candidate, Optimizer):
            optimizers.append(candidate)
        elif reference is not None and reference() is candidate:
            continue  # the ranks did it together, in an earlier session
        elif isinstance(candidate, _BaseDataLoaderIter):
            raise OrderError(
                f"{script_line()}: ddp_patch.enable() came after a DataLoader had been iterated, so the ranks already "
                "work on different batches. Move this line above that loop, best to the top of the script."
            )
        elif candidate.grad is not None:
            raise OrderError(
                f"{script_line()}: ddp_patch.enable() came after a backward (a parameter of shape "
                f"{tuple(candidate.shape)} has a gradient), so the ranks already trained apart. Move this line above "
                "the training, best to the top of the script."
            )
    return optimizers


def remember_used(job: Job) -> None:
    """Note what this session iterated and trained, so that the next one accepts it."""
    job.trained = {id(c): weakref.ref(c) for c in _candidates() if not isinstance(c, Optimizer)}


def _candidates() -> Iterator[Any]:
    wanted = (_BaseDataLoaderIter, torch.nn.Parameter, Optimizer)
    alive = gc.get_objects()
    # By type: isinstance asks __class__, of objects that warn or compute when asked for an attribute. And no step of
    # Python for each of millions.
    kinds = {kind for kind in set(map(type, alive)) if issubclass(kind, wanted)}
    yield from itertools.compress(alive, map(kinds.__contains__, map(type, alive)))
