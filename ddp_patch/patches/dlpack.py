"""torch.utils.dlpack: other libraries get all rows, as those do that ask a batch for ``__dlpack__``."""

from __future__ import annotations

from typing import Any

from ..batch.pending_tensor import PendingTensor
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _to_dlpack(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if args and isinstance(args[0], (BatchTensor, PendingTensor)):  # C code reads memory that they have not
        return args[0].__dlpack__(stream=-1)
    return wrapped(*args, **kwargs)


PATCHES = (
    Patch("torch.utils.dlpack", "to_dlpack", _to_dlpack, "gives all rows of a batch", also=("torch:to_dlpack",)),
)
