"""torch.utils.data.DataLoader: every rank agrees on each global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt
from torch.utils.data import DataLoader

from ..loading.loaders import Loaders
from ..patcher import Patch

_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def patches(loaders: Loaders) -> list[Patch]:
    """Rows for ``DataLoader``."""

    def iterate(wrapped: Any, instance: DataLoader[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return loaders.iterate(wrapped.__func__, instance)

    return [Patch("torch.utils.data.dataloader", "DataLoader.__iter__", iterate, "deals the rows of each batch")]


def patch_when_imported(loaders: Loaders, apply: Callable[[list[Patch]], None]) -> None:
    """Take over torchdata's loader, which has an ``__iter__`` of its own, as soon as the script imports it.

    Args:
        loaders: of the session.
        apply: applies patches, unless the session has ended.
    """

    def iterate(wrapped: Any, instance: DataLoader[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return loaders.iterate_everywhere(wrapped(*args, **kwargs), instance)

    rows = [Patch(_STATEFUL, "StatefulDataLoader.__iter__", iterate, "computes the rows of each batch apart")]
    wrapt.register_post_import_hook(lambda module: apply(rows), _STATEFUL)
