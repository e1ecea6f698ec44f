"""Functions of losses whose sums nobody has asked for yet, of which none keeps a value for its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Each with what computes the same later. Of one loss, and a number:
MULTIPLES: dict[Any, Any] = {
    **{f: f for f in (Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul)},
    **{f: f for f in (Tensor.div, Tensor.__truediv__, torch.div, Tensor.neg, Tensor.__neg__, torch.neg)},
    **{f: f for f in (Tensor.mean, torch.mean, Tensor.sum, torch.sum)},
    **dict.fromkeys((Tensor.mul_, Tensor.__imul__), Tensor.mul),
    **dict.fromkeys((Tensor.div_, Tensor.__itruediv__), Tensor.div),
}
# Of several:
SUMS: dict[Any, Any] = {
    **{f: f for f in (Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add)},
    **{f: f for f in (Tensor.sub, Tensor.__sub__, Tensor.__rsub__, torch.sub)},
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), Tensor.add),
    **dict.fromkeys((Tensor.sub_, Tensor.__isub__), Tensor.sub),
}
IN_PLACE = {Tensor.add_, Tensor.__iadd__, Tensor.sub_, Tensor.__isub__}
