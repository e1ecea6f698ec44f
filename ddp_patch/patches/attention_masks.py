"""transformers: whether a mask can be left out, as it is for a faster kernel if nothing is padded."""

from __future__ import annotations

from typing import Any

from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _may_leave_out(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    mask = args[0] if args else kwargs.get("padding_mask")
    # It computes the same with one. All ranks would have to be asked; of its rows, a rank knows by itself.
    return False if isinstance(mask, BatchTensor) else wrapped(*args, **kwargs)


_WHERE = "transformers.masking_utils"
_EFFECT = "of a batch, a mask is never left out: nothing has to be read"

PATCHES = tuple(
    Patch(_WHERE, name, _may_leave_out, _EFFECT, when_imported=_WHERE, optional=True)
    for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
)
