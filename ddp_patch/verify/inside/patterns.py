"""Fixed patterns in the place of random draws in a forward: alike in all rows, of the values that are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_GOLDEN = 0.6180339887498949  # its multiples fill the unit interval evenly


def _evenly(like: Tensor) -> Tensor:
    """Numbers in (0, 1) along the last dimension, alike in all rows; the middle for a number a row."""
    if like.dim() < 2:
        return torch.full_like(like, 0.5, dtype=torch.float64)
    steps = torch.arange(1, like.shape[-1] + 1, dtype=torch.float64, device=like.device)
    return (steps * _GOLDEN).frac().clamp(1e-6, 1 - 1e-6).expand(like.shape)


def _uniform(drawn: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return low + (high - low) * _evenly(drawn)


def _normal(drawn: Tensor, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Tensor:
    usual: Tensor = (2**0.5) * torch.erfinv(2 * _evenly(drawn) - 1)
    return usual.mul(std).add(mean)


def _log_normal(drawn: Tensor, mean: float = 1.0, std: float = 2.0, **_: Any) -> Tensor:
    return _normal(drawn, mean, std).exp()


def _cauchy(drawn: Tensor, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Tensor:
    return median + sigma * torch.tan(torch.pi * (_evenly(drawn) - 0.5))


def _exponential(drawn: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
    return -torch.log(_evenly(drawn)) / lambd


def _geometric(drawn: Tensor, p: float, **_: Any) -> Tensor:
    return (torch.log(_evenly(drawn)) / math.log1p(-p)).ceil().clamp(min=1) if p < 1 else torch.ones_like(drawn)


def _poisson(drawn: Tensor, rate: Tensor, *_: Any, **__: Any) -> Tensor:
    return _normal(drawn, rate, rate.double().sqrt()).round().clamp(min=0)


def _bernoulli(drawn: Tensor, p: Any = 0.5, *_: Any, **__: Any) -> Tensor:
    return torch.lt(_evenly(drawn), p).double()


def _whole(drawn: Tensor, low: int, high: int) -> Tensor:
    return (low + (high - low) * _evenly(drawn)).floor().clamp(max=high - 1)


def _integers(drawn: Tensor, *args: Any, low: int = 0, high: int | None = None, **_: Any) -> Tensor:
    """Of ``randint``: (high, size), (low, high, size), or by name."""
    bounds = [int(each) for each in args if not isinstance(each, (list, tuple))]
    high = bounds.pop() if high is None else high
    return _whole(drawn, bounds[0] if bounds else low, high)


def _any_integers(drawn: Tensor, *args: int | None, **named: Any) -> Tensor:
    """Of ``random_``: (), (high), (low, high), or by name."""
    low, high = (0, *args)[-2:] if args else (0, None)
    low, high = named.get("from", low) or 0, named.get("to", high)
    if high is None:  # all numbers that the dtype has, or tells apart
        is_float = drawn.dtype.is_floating_point
        high = int(2 / torch.finfo(drawn.dtype).eps) if is_float else min(torch.iinfo(drawn.dtype).max, 1 << 53)
    return _whole(drawn, int(low), int(high))


def _multinomial(drawn: Tensor, weights: Tensor, samples: int = 1, replacement: bool = False, **named: Any) -> Tensor:
    """By inverting the cumulated weights; without putting back, the first of a race that heavy ones are fast in."""
    samples = named.get("num_samples", samples)
    if samples > 1 and not replacement:
        return (weights.double() / -torch.log(_evenly(weights))).topk(samples, -1).indices
    cumulated = weights.double().cumsum(-1)
    wanted = (_evenly(drawn) * cumulated[..., -1:]).contiguous()
    return torch.searchsorted(cumulated.contiguous(), wanted, right=True).clamp(max=weights.shape[-1] - 1)


# Functions of torch, and what takes the place of their draws: made of what was drawn and the arguments. ``randperm`` is
# left alone: what it orders may be rows.
FACTORIES: dict[str, Callable[..., Tensor]] = {
    "rand": lambda drawn, *_, **__: _uniform(drawn),
    "randn": lambda drawn, *_, **__: _normal(drawn),
    "randint": _integers,
    "rand_like": lambda drawn, *_, **__: _uniform(drawn),
    "randn_like": lambda drawn, *_, **__: _normal(drawn),
    "randint_like": lambda drawn, _, *bounds, **named: _integers(drawn, *bounds, **named),
    "normal": _normal,
    "poisson": _poisson,
    "multinomial": _multinomial,
    "bernoulli": lambda drawn, weights, p=None, **_: _bernoulli(drawn, weights if p is None else p),
}
IN_PLACE: dict[str, Callable[..., Tensor]] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "log_normal_": _log_normal,
    "cauchy_": _cauchy,
    "exponential_": _exponential,
    "geometric_": _geometric,
    "random_": _any_integers,
    "bernoulli_": _bernoulli,
}
