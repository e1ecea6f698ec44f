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

_FEW = 9  # rows


def where_rows_lie(func: Callable[..., Any], args: Any, kwargs: Any) -> Dims | None:
    """Tell where a function's results have their rows, if some rows give what all of them give for these.

    No communication, and the same answer on every rank. Of a large batch a few rows are tried, and two runs of them
    whose sizes have no common divisor: a function that treats pairs of rows, say, keeps them apart in even runs.

    Args:
        func: a function of torch.
        args: of a call; the batches among them were gathered.
        kwargs: of the call.
    """
    layouts = {leaf._layout for _, leaf in leaves((args, kwargs)) if isinstance(leaf, BatchTensor)}
    if len({(layout.counts, layout.total) for layout in layouts}) != 1 or writes_in_place(func, kwargs):
        return None
    total, spans = _tried(next(iter(layouts)))
    generator = torch.Generator("cpu").manual_seed(0)
    generic: dict[int, Tensor] = {}

    def cut(leaf: Any, start: int, count: int) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dim = leaf._layout.dim if isinstance(leaf, BatchTensor) else None
        if id(leaf) not in generic:
            few = full_tensor(leaf).narrow(dim, 0, total) if isinstance(leaf, BatchTensor) and dim is not None else leaf
            generic[id(leaf)] = _generic(few, generator)
        return generic[id(leaf)] if dim is None else generic[id(leaf)].narrow(dim, start, count)

    def given_for(start: int, count: int) -> Any:
        its_args, its_kwargs = map_leaves(lambda leaf: cut(leaf, start, count), (args, kwargs))
        return func(*its_args, **its_kwargs)

    try:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass(), _quiet():
            whole = given_for(0, total)
            found = [compare(given_for(*span), whole, Span(*span, total)) for span in spans]
    except Exception:  # noqa: BLE001 — it may refuse such values, and is decided by that
        return None
    dims = found[0]
    return None if dims is None or None in dims.values() or any(its != dims for its in found) else dims


def _tried(layout: Layout) -> tuple[int, list[tuple[int, int]]]:
    """How many rows of a batch are tried as a whole, and which runs of these beside it."""
    if layout.total > _FEW:
        return _FEW, [(0, _FEW // 2), (_FEW // 2, _FEW - _FEW // 2)]
    spans = [layout.span(rank) for rank in range(len(layout.counts))]
    return layout.total, [(start, count) for start, count in spans if count]


def _quiet() -> Trial:
    return Trial(torch.nn.Module())


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
