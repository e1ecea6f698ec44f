"""Weights and buffers of two runs, or the tensors in a file that both wrote, side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .difference import Difference
from .observed import Observed
from .tolerance import Tolerance


def weights(one: Observed, other: Observed, tolerance: Tolerance) -> Iterator[Difference]:
    """Compare what models ended with, and what each rank has of it."""
    yield from tensors(one, one.tensors, other.tensors, tolerance, "weights", "")
    for number, state in enumerate(other.others, 1):
        apart = list(tensors(other, other.tensors, state, tolerance, "weights", f"on rank {number}"))
        yield from (dataclasses.replace(found, said=f"{found.said}, compared with rank 0") for found in apart[:1])


def tensors(
    alone: Observed, ones: dict[str, Tensor], others: dict[str, Tensor], tolerance: Tolerance, what: str, where: str
) -> Iterator[Difference]:
    """Compare tensors by their names, those first that differ most.

    Args:
        alone: the run alone, whose gradients tell what is nothing but rounding.
        ones: of the run alone.
        others: of the other run.
        tolerance: of rounding.
        what: "weights" or "file".
        where: the file or rank, if not the run itself.
    """
    largest: dict[str, float] = {}
    for name, tensor in ones.items():
        root = name.partition(".")[0]
        largest[root] = max(largest.get(root, 0.0), _largest(tensor))
    left_out = noise(alone, tolerance)
    found = []
    for name in [*ones, *(name for name in others if name not in ones)]:
        label = f"{where}: {name}" if where else f"weights {name}"
        key = where or name
        if name not in ones or name not in others:
            said = f"{label} is {'missing' if name in ones else 'not there alone'}"
            found.append(Difference(what, key, alone.step_count, "", said))
            continue
        a, b = ones[name], others[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            said = f"{label} is {_kind(b)}, alone {_kind(a)}"
            found.append(Difference(what, key, alone.step_count, "", said))
            continue
        if name in left_out if what == "weights" else any(_is_in(other, name, ones, alone) for other in left_out):
            continue
        scale = largest[name.partition(".")[0]] if tolerance.dtype == "float64" else _largest(a)
        times, apart = _worst(a, b, scale, tolerance, alone.age)
        if times > 1:
            said = f"{label} differs by up to {apart:.3g}, and its largest value is {_largest(a):.3g}"
            found.append(Difference(what, key, alone.step_count, "", said, times))
    yield from sorted(found, key=lambda difference: -difference.times)


def noise(seen: Observed, tolerance: Tolerance) -> list[str]:
    """Name the parameters whose gradients are nothing but rounding in every step, as a bias before BatchNorm has them.

    Optimizers such as Adam, which divide by the gradient's size, make steps of full size of it, in no direction.
    """
    largest: dict[str, float] = {}
    for step in seen.steps:
        if step.number < len(seen.optimizers) and step.norm:
            for name, norm in zip(seen.optimizers[step.number]["names"], step.norms, strict=False):
                if norm is not None:
                    largest[name] = max(largest.get(name, 0.0), norm / step.norm)
    return [name for name, part in largest.items() if 0 < part < tolerance.noise]


def _is_in(parameter: str, name: str, ones: dict[str, Tensor], alone: Observed) -> bool:
    """Tell whether a tensor of a file is a parameter: it is called so, and what else its model has lies beside it."""
    root, _, rest = parameter.partition(".")
    if not f".{name}".endswith(f".{rest}"):
        return False
    before = name.removesuffix(rest)
    model = {key.partition(".")[2]: its for key, its in alone.tensors.items() if key.partition(".")[0] == root}
    return all(before + key in ones and ones[before + key].shape == its.shape for key, its in model.items())


def _worst(a: Tensor, b: Tensor, scale: float, tolerance: Tolerance, step: int) -> tuple[float, float]:
    if not a.numel():
        return 0.0, 0.0
    if not (a.is_floating_point() or a.is_complex()):
        apart = (a.to(torch.float64) - b.to(torch.float64)).abs().max().item()
        return (math.inf if apart else 0.0), apart
    x, y = (t.to_dense() if t.is_sparse else t for t in (a, b))
    kind = torch.complex128 if x.is_complex() else torch.float64
    x, y = x.to(kind), y.to(kind)
    apart = torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, (x - y).abs()).nan_to_num(math.inf).max().item()
    return tolerance.exceeds(0.0, apart, scale, step), apart


def _largest(tensor: Tensor) -> float:
    if not tensor.numel() or tensor.dtype == torch.bool:
        return 0.0
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return float((dense.abs() if dense.is_complex() else dense.double().abs()).nan_to_num(0.0).max())


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
