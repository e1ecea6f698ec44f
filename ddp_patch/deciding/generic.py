"""Does a function that nothing is known about keep rows apart? Try it on generic values of the same shapes.

The values at hand may hide it: what is multiplied by a gate that starts at zero, say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..batch.forms import full_tensor
from ..batch.names import writes_in_place
from ..batch.tensor import BatchTensor
from ..calling.comparison import Dims, Span, compare, usual_size
from ..structure import leaves, map_leaves
from .trial import Trial

_FEW = 9  # rows


def where_rows_lie(func: Callable[..., Any], args: Any, kwargs: Any, rank: int) -> Dims | None:
    """Tell where a function's results have their rows, if some rows give what the whole batch gives for them.

    Beside a rank's rows, runs of a few are tried, cut at two places one after the other: a function that treats rows in
    pairs, or fours, keeps them apart where all ranks have an even number. No communication.

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

    def cut(leaf: Any, start: int, count: int) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in generic:
            generic[id(leaf)] = _generic(full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf, generator)
        whole = generic[id(leaf)]
        return whole.narrow(leaf._layout.dim, start, count) if isinstance(leaf, BatchTensor) else whole

    def given_for(start: int, count: int) -> Any:
        its_args, its_kwargs = map_leaves(lambda leaf: cut(leaf, start, count), (args, kwargs))
        return func(*its_args, **its_kwargs)

    def compared(total: int, spans: Iterable[tuple[int, int]]) -> Iterator[Dims | None]:
        whole = given_for(0, total)
        for start, count in spans:
            yield compare(given_for(start, count), whole, Span(start, count, total))

    few = min(layout.total, _FEW)
    try:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass(), _quiet():
            (dims,) = compared(layout.total, [layout.span(rank)])
            if dims is None or None in dims.values() or any(its != dims for its in compared(few, _runs(few))):
                return None
    except Exception:  # noqa: BLE001 — it may refuse such values, or so many, and is decided by that
        return None
    return dims


def _runs(rows: int) -> list[tuple[int, int]]:
    """The two sides of two cuts: no group of rows ends at both."""
    cuts = (rows // 2, rows // 2 + 1)
    sides = ((start, end - start) for at in cuts for start, end in ((0, at), (at, rows)))
    return [(start, count) for start, count in sides if 0 < count < rows]


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
