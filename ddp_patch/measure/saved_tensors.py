"""What autograd keeps for the backward of a step, on this rank: bytes of memory, at their peak.

Each block of memory counts once, however many tensors are views of it. Weights and buffers are left out, as they are
there anyway, and what goes through hooks of the script's own: ``checkpoint`` and ``save_on_cpu`` keep nothing here.
"""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

_AUTOGRAD: Any = torch._C._autograd  # torch 2.13; what torch.autograd.graph.saved_tensors_hooks stands on


class _SavedTensor:
    """Stands for a tensor in autograd's graph, and is gone as soon as the backward has used it."""

    def __init__(self, tensor: Tensor, gone: Callable[[], None] | None) -> None:
        self.tensor = tensor
        self._gone = gone

    def __del__(self) -> None:
        if self._gone is not None:
            self._gone()


class SavedTensors:
    """Counts in one step, through torch's hooks of saved tensors, which change no value."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self._holders: Counter[int] = Counter()  # of each block of memory
        self._apart: set[int] = set()  # blocks of weights and buffers
        self._now = self._peak = 0
        self._is_in = False  # our hooks are in place
        self._is_whole = False  # nothing had them taken out
        self._hooks = (self._pack, _unpack)  # the very objects, by which they are found again
        self._disable: Any = None

    def begin(self, optimizers: Iterable[Optimizer]) -> None:
        """Count from now on, unless hooks of the script's are in place or forbidden here.

        Args:
            optimizers: of the script.
        """
        if not _AUTOGRAD._saved_tensors_hooks_is_enabled() or _top() is not None:
            return
        self._apart = {_block(each)[0] for each in _lasting(optimizers)}
        self._is_in = self._is_whole = True
        # torch.func refuses to begin where hooks are in place.
        self._disable = _AUTOGRAD._saved_tensors_hooks_disable
        _AUTOGRAD._saved_tensors_hooks_disable = self._giving_way(self._disable)
        _AUTOGRAD._push_saved_tensors_default_hooks(*self._hooks)

    def end(self) -> int | None:
        """Count no more; gives the bytes, or None where not all of them were seen."""
        if self._disable is not None:
            self._take_out()
            _AUTOGRAD._saved_tensors_hooks_disable = self._disable
            self._disable = None
        return self._peak if self._is_whole else None

    def _take_out(self) -> None:
        """Take our hooks out; where those of the script lie on them, as soon as these are gone."""
        if not self._is_in:
            return
        self._is_in, pop = False, _AUTOGRAD._pop_saved_tensors_default_hooks
        if self._is_on_top():
            pop()
            return
        self._is_whole = False

        @functools.wraps(pop)
        def popping() -> None:
            pop()
            if self._is_on_top():
                pop()
                _AUTOGRAD._pop_saved_tensors_default_hooks = pop

        _AUTOGRAD._pop_saved_tensors_default_hooks = popping

    def _is_on_top(self) -> bool:
        top = _top()
        return top is not None and top[0] == self._hooks[0]

    def _giving_way(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wrapped)
        def disable(*args: Any, **kwargs: Any) -> Any:
            if self._is_in:
                self._take_out()
                self._is_whole = False
            return wrapped(*args, **kwargs)

        return disable

    def _pack(self, tensor: Tensor) -> _SavedTensor:
        # torch's documents: the tensor itself would be a reference cycle.
        with torch._C.DisableTorchFunctionSubclass():
            detached = tensor.detach()
        key, size = _block(detached)
        if not self._is_in or not size or key in self._apart:
            return _SavedTensor(detached, None)
        self._holders[key] += 1
        if self._holders[key] == 1:
            self._now += size
            self._peak = max(self._peak, self._now)
        return _SavedTensor(detached, lambda: self._gone(key, size))

    def _gone(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self._now -= size


def _unpack(saved: _SavedTensor) -> Tensor:
    return saved.tensor


def _top() -> Any:
    """The hooks that apply here; None without any."""
    return _AUTOGRAD._top_saved_tensors_default_hooks(True)


def _block(tensor: Tensor) -> tuple[int, int]:
    """Give the block of memory that a tensor is a view of, and its bytes; 0 bytes where it has none."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse tensors have several, and meta tensors none
        return 0, 0


def _lasting(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    """Weights and buffers of all modules that there are, and what optimizers step besides."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
    for each in gc.get_objects():
        if issubclass(type(each), nn.Module):  # isinstance would import what a lazy module stands for
            attributes = vars(each)
            for name in ("_parameters", "_buffers"):
                yield from (its for its in attributes.get(name, {}).values() if isinstance(its, Tensor))
