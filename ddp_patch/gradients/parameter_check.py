"""The option ``check_every``: the ranks' parameters and gradients are compared now and then, in one small collective.

Each rank hashes what an optimizer is about to use: bits times fixed random weights, summed modulo 2^64 (Carter and
Wegman 1979), so that entries that changed places or differ by opposite amounts are seen too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.world import World
from ..errors import LockstepError
from ..ledger import script_line
from .grad_watch import grad_of

_AT_ONCE = 1 << 20  # entries that are hashed at once: 8 MiB of weights
_ODD = 0x5851F42D4C957F2D  # Knuth's multiplier of MMIX: an odd one is invertible modulo 2^64
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class ParameterCheck:
    """Compares the ranks before every nth step of each optimizer."""

    def __init__(self, world: World, every: int, models: Callable[[], Iterable[nn.Module]]) -> None:
        """Begin to count.

        Args:
            world: the ranks.
            every: so many steps of an optimizer.
            models: gives those that are trained, which have names for parameters.
        """
        self._world = world
        self._every = every
        self._models = models
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._weights: dict[torch.device, Tensor] = {}

    def before_step(self, optimizer: Any, around: Sequence[Any] = ()) -> None:
        """An optimizer is about to step; its gradients are those of all ranks by now.

        Args:
            optimizer: whose parameters are compared.
            around: whose steps it is inside of. What they have themselves was compared as they began.

        Raises:
            LockstepError: on every rank, naming the first parameter that differs, and the ranks.
        """
        compared = {id(parameter) for other in around for parameter in _parameters(other)}
        if all(id(parameter) in compared for parameter in _parameters(optimizer)):
            return
        step = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if step % self._every:
            return
        # As each rank sees it: one that lacks a parameter would hash fewer.
        total = torch.zeros((), dtype=torch.int64, device=self._world.device)
        for _, _, tensor in self._used_by(optimizer):
            total = total * _ODD + self._hash(tensor).to(total.device)
        hashes = total.new_zeros(self._world.size)
        hashes[self._world.rank] = total
        self._world.ledger.compared += 1
        if len(set(self._world.all_reduce(hashes).tolist())) > 1:
            self._name_the_first(optimizer, step)

    def _used_by(self, optimizer: Any) -> Iterator[tuple[nn.Parameter, str, Tensor | None]]:
        for parameter in _parameters(optimizer):
            yield parameter, "", parameter.detach()
            yield parameter, "the gradient of ", grad_of(parameter)

    def _hash(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            return torch.ones((), dtype=torch.int64, device="cpu")
        if tensor.is_sparse:
            entries = tensor.detach().coalesce()
            return self._hash(entries.indices()) * _ODD + self._hash(entries.values())
        bits = _bits(tensor.detach())
        weights = self._weights_for(bits)
        total = torch.zeros((), dtype=torch.int64, device=bits.device)
        for part in bits.split(_AT_ONCE):
            total = total * _ODD + (part.to(torch.int64) * weights[: len(part)]).sum()
        return total

    def _weights_for(self, bits: Tensor) -> Tensor:
        wanted, found = min(len(bits), _AT_ONCE), self._weights.get(bits.device)
        if found is None or len(found) < wanted:
            size = _AT_ONCE if found is not None else wanted
            drawn = torch.Generator("cpu").manual_seed(0)  # alike on every rank, and none of the script's
            found = torch.randint(-(1 << 63), (1 << 63) - 1, (size,), generator=drawn, device="cpu").to(bits.device)
            self._weights[bits.device] = found
        return found

    def _name_the_first(self, optimizer: Any, step: int) -> None:
        used = [*self._used_by(optimizer)]
        local = [(int(self._hash(tensor)), _summed(tensor)) for _, _, tensor in used]
        reported = [entry[0] for entry in self._world.share([local])]
        for index in range(max(map(len, reported))):
            found = [entry[index] if index < len(entry) else (0, "none") for entry in reported]
            if len({bits for bits, _ in found}) == 1:
                continue
            parameter, what, _ = used[min(index, len(used) - 1)]
            raise LockstepError(
                f"{script_line()}: {what}{self._named(parameter)} differs between ranks before step {step} of "
                f"{type(optimizer).__name__} ({_by_value(found)}), as check_every={self._every} found. Something "
                "changes it on some ranks alone: write the statement without a condition on the rank, and with random "
                "numbers from torch, numpy or random, whose generators agree on all ranks."
            )

    def _named(self, parameter: nn.Parameter) -> str:
        for model in self._models():
            for name, other in model.named_parameters():
                if other is parameter:
                    return f"{name!r} of {type(model).__name__}"
        return f"a parameter of shape {tuple(parameter.shape)}"


def _parameters(optimizer: Any) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _bits(tensor: Tensor) -> Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = real.contiguous().reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()])


def _summed(tensor: Tensor | None) -> str:
    if tensor is None:
        return "none"
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return f"sum {(values.abs() if values.is_complex() else values).double().sum().item():.17g}"


def _by_value(found: list[tuple[int, str]]) -> str:
    ranks: dict[tuple[int, str], list[str]] = {}
    for rank, value in enumerate(found):
        ranks.setdefault(value, []).append(str(rank))
    parts = [f"{text} on rank{'s' if len(its) > 1 else ''} {', '.join(its)}" for (_, text), its in ranks.items()]
    return "; ".join(parts)
