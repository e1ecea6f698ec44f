"""Random draws for rows, held still: the same for a row whichever rank computes or loads it.

ddp_patch draws dropout masks, noise inside a forward and augmentation from each rank's generators, so they are others
than one process's. Held still, in all runs alike, dropout is off; noise in a module's forward is a fixed pattern along
the last dimension; and what a dataset draws for an item follows from the item's number. What the script itself draws
(initial weights, shuffles, noise for a generator) is not touched: it is the same on all ranks anyway.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ...generators import set_states, states
from ...ledger import model_line
from .patterns import FACTORIES, IN_PLACE
from .record import Record

_SEED = 1_000_003
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_METHODS = ("multinomial", "bernoulli")  # of tensors as well
_MODULES = torch.nn.modules.module.__file__


def install(record: Record) -> None:
    """Hold draws still from now on, and note which ones there were."""
    for name in _DROPOUTS:
        setattr(F, name, _without_dropout(getattr(F, name), 1, "p", 0.5, record))
    F.scaled_dot_product_attention = _without_dropout(F.scaled_dot_product_attention, 4, "dropout_p", 0.0, record)
    for name in _RECURRENT:
        setattr(torch._VF, name, _without_recurrent_dropout(getattr(torch._VF, name), record))
    for name, pattern in FACTORIES.items():
        setattr(torch, name, _patterned(getattr(torch, name), pattern, record))
    for name in _METHODS:
        setattr(Tensor, name, _patterned(getattr(Tensor, name), FACTORIES[name], record))
    for name, pattern in IN_PLACE.items():
        setattr(Tensor, name, _patterned(getattr(Tensor, name), pattern, record))
    fetcher: Any = _MapDatasetFetcher
    fetcher.fetch = _by_item(fetcher.fetch, record)


# --- dropout ----------------------------------------------------------------------------------------------------------


def _without_dropout(wrapped: Callable[..., Any], place: int, name: str, usual: float, record: Record) -> Any:
    @functools.wraps(wrapped)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        trains = kwargs.get("training", args[place + 1] if len(args) > place + 1 else True)
        p = kwargs.get(name, args[place] if len(args) > place else usual)
        if not (isinstance(p, (int, float)) and p > 0 and (trains or name == "dropout_p")):
            return wrapped(*args, **kwargs)
        record.once("still", what="dropout is off", line=model_line())
        if len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        else:
            kwargs = {**kwargs, name: 0.0}
        return wrapped(*args, **kwargs)

    return dropout


def _without_recurrent_dropout(wrapped: Callable[..., Any], record: Record) -> Any:
    @functools.wraps(wrapped)
    def recurrent(*args: Any) -> Any:
        place = 6 if isinstance(args[3], (list, tuple)) else 5  # packed: (data, sizes, hx, weights, ...)
        if isinstance(args[place], float) and args[place] > 0 and args[place + 1]:
            record.once("still", what="dropout between recurrent layers is off", line=model_line())
            args = (*args[:place], 0.0, *args[place + 1 :])
        return wrapped(*args)

    return recurrent


# --- noise in a forward ---------------------------------------------------------------------------------------------


def _patterned(wrapped: Callable[..., Any], pattern: Callable[..., Tensor], record: Record) -> Any:
    @functools.wraps(wrapped)
    def patterned(*args: Any, **kwargs: Any) -> Any:
        if not _in_forward(sys._getframe(1)):
            return wrapped(*args, **kwargs)
        before = states()
        drawn = wrapped(*args, **kwargs)
        set_states(before)  # so that the script draws next what it draws on any number of ranks
        record.once("still", what=f"{wrapped.__name__} in a forward gives a fixed pattern", line=model_line())
        inputs = args[1:] if wrapped.__name__ in IN_PLACE else args
        with torch.no_grad():
            drawn.copy_(pattern(drawn, *inputs, **kwargs).to(drawn.dtype))
        return drawn

    return patterned


def _in_forward(frame: FrameType | None) -> bool:
    """Tell whether a module's forward is running."""
    while frame is not None:
        if frame.f_code.co_filename == _MODULES and frame.f_code.co_name == "_call_impl":
            return True
        frame = frame.f_back
    return False


# --- augmentation ---------------------------------------------------------------------------------------------------


def _by_item(wrapped: Callable[..., Any], record: Record) -> Any:
    @functools.wraps(wrapped)
    def fetch(fetcher: Any, index: Any) -> Any:
        dataset = fetcher.dataset
        if isinstance(dataset, _ByItem):
            return wrapped(fetcher, index)
        fetcher.dataset = _ByItem(dataset, record)
        try:
            return wrapped(fetcher, index)
        finally:
            fetcher.dataset = dataset

    return fetch


class _ByItem:
    """A dataset whose draws for an item follow from its number."""

    def __init__(self, dataset: Any, record: Record) -> None:
        self._dataset = dataset
        self._record = record
        if getattr(dataset, "__getitems__", None):  # torch asks whether it can give several at once
            self.__getitems__ = lambda index: [item for i in index for item in self._drawn(i, lambda k: self._many(k))]

    def _many(self, index: Any) -> Any:
        return self._dataset.__getitems__([index])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._drawn(index, lambda i: self._dataset[i])

    def _drawn(self, index: Any, load: Callable[[Any], Any]) -> Any:
        before = states()
        _seed(_number_of(self._dataset, index))
        seeded = random.getstate(), torch.get_rng_state()
        item = load(index)
        if random.getstate() != seeded[0] or not torch.equal(torch.get_rng_state(), seeded[1]):
            self._record.once("still", what="a dataset draws for an item by its number", line="")
        set_states(before)
        return item


def _number_of(dataset: Any, index: Any) -> int:
    while hasattr(dataset, "indices") and hasattr(dataset, "dataset") and isinstance(index, int):
        index, dataset = int(dataset.indices[index]), dataset.dataset
    return index if isinstance(index, int) else sum(str(index).encode())


def _seed(number: int) -> None:
    random.seed(_SEED + number)
    torch.default_generator.manual_seed(_SEED + number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((_SEED + number) % (1 << 32))
