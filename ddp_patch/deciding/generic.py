"""Does a function that nothing is known about keep rows apart? Try it on generic values of the same shapes.

The values at hand may hide it: what is multiplied by a gate that starts at zero, say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch.forms import full_tensor
from ..batch.layout import Layout
from ..batch.names import writes_in_place
from ..batch.tensor import BatchTensor
from ..calling.comparison import Dims, Span, compare, usual_size
from ..structure import leaves, map_leaves
from .trial import Trial


def where_rows_lie(func: Callable[..., Any], args: Any, kwargs: Any, rank: int) -> Dims | None:
    """Tell where a function's results have their rows, if some rows give what the whole batch gives for them.

    No communication.

    Args:
        func: a function of torch.
        args: of a call; the batches among them were gathered.
        kwargs: of the call.
        rank: whose rows are tried.
    """
    layouts = {leaf._layout for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor)}
    if len({(layout.counts, layout.total) for layout in layouts}) != 1 or writes_in_place(func, kwargs):
        return None
    layout = next(iter(layouts))
    generator = torch.Generator("cpu").manual_seed(0)
    generic: dict[int, Tensor] = {}

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in generic:
            generic[id(leaf)] = _generic(full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf, generator)
        return generic[id(leaf)]

    def rows(leaf: Any) -> Any:
        return _rows(generic[id(leaf)], leaf._layout, rank) if isinstance(leaf, BatchTensor) else whole(leaf)

    try:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass(), _quiet():
            all_args, all_kwargs = map_leaves(whole, (args, kwargs))
            on_all = func(*all_args, **all_kwargs)
            own_args, own_kwargs = map_leaves(rows, (args, kwargs))
            on_rows = func(*own_args, **own_kwargs)
    except Exception:  # noqa: BLE001 — it may refuse such values, and is decided by that
        return None
    dims = compare(on_rows, on_all, Span(*layout.span(rank), layout.total))
    return None if dims is None or None in dims.values() else dims


def _quiet() -> Trial:
    return Trial(torch.nn.Module())


def _rows(whole: Tensor, layout: Layout, rank: int) -> Tensor:
    start, count = layout.span(rank)
    return whole.narrow(layout.dim, start, count)


def _generic(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Other values, about where the given ones are."""
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or not tensor.numel():
            return tensor
        is_real = tensor.is_floating_point() or tensor.is_complex()
        kind = torch.float32 if is_real and tensor.element_size() <= 4 else torch.float64
        noise = torch.rand(tensor.shape, generator=generator, dtype=kind, device="cpu").to(tensor.device)
        if tensor.dtype is torch.bool:
            return noise > 0.5
        if not is_real:
            least, most = tensor.min(), tensor.max()
            return least + noise.mul_(most - least + 1).to(tensor.dtype)
        return tensor + noise.mul_(0.1 * float(usual_size(tensor)) or 0.1).to(tensor.dtype)
