"""transformers: whether a mask can be left out, as it is for a faster kernel if nothing is padded."""

from __future__ import annotations

import sys
from typing import Any

from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session


def _may_leave_out(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    # It computes the same with one. All ranks would have to be asked; of its rows, a rank knows by itself.
    return False if isinstance(_mask_of(args, kwargs), BatchTensor) else wrapped(*args, **kwargs)


def _prepare(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not isinstance(_mask_of(args, kwargs), BatchTensor):
        return wrapped(*args, **kwargs)
    return getattr(sys.modules[_BEFORE], _ALWAYS)(*args, **kwargs)


def _mask_of(args: Args, kwargs: Kwargs) -> Any:
    return args[0] if args else next((kwargs[name] for name in _MASKS if name in kwargs), None)


_MASKS = ("padding_mask", "attention_mask", "mask")
_WHERE, _BEFORE = "transformers.masking_utils", "transformers.modeling_attn_mask_utils"  # before version 5
_ALWAYS = "_prepare_4d_attention_mask"  # leaves none out
_EFFECT = "of a batch, a mask is never left out: nothing has to be read"


def _row(module: str, name: str, wrapper: Wrapper) -> Patch:
    return Patch(module, name, wrapper, _EFFECT, when_imported=module, optional=True)


PATCHES = (
    _row(_WHERE, "_ignore_causal_mask_sdpa", _may_leave_out),
    _row(_WHERE, "_ignore_bidirectional_mask_sdpa", _may_leave_out),
    _row(_BEFORE, "AttentionMaskConverter._ignore_causal_mask_sdpa", _may_leave_out),
    _row(_BEFORE, "_prepare_4d_attention_mask_for_sdpa", _prepare),
)
