"""torch.nn.parallel's replicate, scatter, parallel_apply and gather, as a hand-rolled DataParallel calls them.

Every rank is one device: there is one replica, the module itself, and one chunk, the whole batch. The module's own call
puts this rank's rows under DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BatchError
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import map_leaves

_TO_CPU = (-1, "cpu", torch.device("cpu"))


def _replicate(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(network: nn.Module, devices: Sequence[Any], detach: bool = False) -> list[nn.Module]:
        session.ledger.note(
            f"nn.parallel.replicate for {len(devices)} devices: all {session.world.size} ranks work, one device each, "
            "so it gives one replica, the module itself"
        )
        return _OnlyList([network]) if len(devices) else []

    return bind(*args, **kwargs)


def _scatter(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
        chunk = session.device_map.bring(inputs)
        # torch gives a tuple for a tensor and a list for everything else, which scatter_kwargs extends.
        return _OnlyTuple([chunk]) if isinstance(inputs, Tensor) else _OnlyList([chunk])

    return bind(*args, **kwargs)


def _parallel_apply(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(
        modules: Sequence[nn.Module],
        inputs: Sequence[Any],
        kwargs_tup: Sequence[dict[str, Any]] | None = None,
        devices: Sequence[Any] | None = None,
    ) -> list[Any]:
        calls = list(inputs)
        nets = list(modules) * len(calls) if len(modules) == 1 else list(modules)
        keywords = _per_call(kwargs_tup, len(calls))
        if len(nets) != len(calls):
            raise BatchError(
                f"nn.parallel.parallel_apply was called with {len(nets)} modules and {len(calls)} inputs. Under "
                "ddp_patch every rank is one device, so nn.parallel.replicate gives one module and "
                "nn.parallel.scatter one chunk, the whole batch. Make both with them, or write module(inputs)."
            )
        return [
            net(*(call if isinstance(call, (list, tuple)) else (call,)), **named)
            for net, call, named in zip(nets, calls, keywords, strict=True)
        ]

    return bind(*args, **kwargs)


def _gather(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(outputs: Any, target_device: Any, dim: int = 0) -> Any:
        chunks = list(outputs)
        together = chunks[0] if len(chunks) == 1 else _together(chunks, dim)
        to_cpu = any(target_device == host for host in _TO_CPU)
        return map_leaves(_on_host, together) if to_cpu else session.device_map.bring(together)

    return bind(*args, **kwargs)


def _on_host(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf


class _Only:
    """A sequence of one that says why there is no second."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and not -1 <= index < 1:
            raise BatchError(
                f"Entry {index} of what nn.parallel.replicate or scatter gave was asked for. Under ddp_patch every "
                "rank is one device, so there is one entry: the module itself, the whole batch. Loop over the result "
                "instead of over device ids, or write module(inputs)."
            )
        return super().__getitem__(index)  # type: ignore[misc]  # of list or tuple


class _OnlyList(_Only, list[Any]):
    pass


class _OnlyTuple(_Only, tuple[Any, ...]):
    pass


def _per_call(kwargs_tup: Sequence[dict[str, Any]] | None, count: int) -> list[dict[str, Any]]:
    if kwargs_tup is None:
        return [{}] * count
    keywords = list(kwargs_tup)
    if len(keywords) > count == 1 and all(_same(keywords[0], other) for other in keywords[1:]):
        return keywords[:1]  # written out for every device
    if len(keywords) != count:
        raise BatchError(
            f"nn.parallel.parallel_apply was called with {count} inputs and {len(keywords)} keyword arguments, which "
            "differ. Under ddp_patch every rank is one device, which takes the whole batch: pass one dict, or write "
            "module(inputs, **kwargs)."
        )
    return keywords


def _same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(left[key] is right[key] for key in left)


def _together(outputs: list[Any], dim: int) -> Any:
    """Concatenate several modules' outputs, as ``torch.nn.parallel.gather`` does (torch 2.13)."""
    first = outputs[0]
    if isinstance(first, Tensor):
        if dim == 0 and all(output.dim() == 0 for output in outputs):
            return torch.stack(outputs)
        return torch.cat(outputs, dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if not all(len(first) == len(output) for output in outputs):
            raise ValueError("All dicts must have the same number of keys")
        kind: Callable[[Iterable[Any]], Any] = type(first)
        return kind((key, _together([output[key] for output in outputs], dim)) for key in first)
    merged = (_together(list(items), dim) for items in zip(*outputs, strict=True))
    return type(first)._make(merged) if hasattr(first, "_make") else type(first)(merged)


_WHERE = "torch.nn.parallel"

PATCHES = (
    Patch(f"{_WHERE}.replicate", "replicate", _replicate, "gives the module itself"),
    Patch(f"{_WHERE}.scatter_gather", "scatter", _scatter, "gives one chunk, the batch"),
    Patch(
        f"{_WHERE}.parallel_apply",
        "parallel_apply",
        _parallel_apply,
        "calls one module after the other",
    ),
    Patch(f"{_WHERE}.scatter_gather", "gather", _gather, "puts outputs together"),
)
