"""torch.utils.data.DataLoader: every rank agrees on each global batch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from ..loading.loaders import Loaders
from ..patcher import Patch


def patches(loaders: Loaders) -> list[Patch]:
    """Rows for ``DataLoader``."""

    def iterate(wrapped: Any, instance: DataLoader[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return loaders.iterate(wrapped.__func__, instance)

    return [Patch("torch.utils.data.dataloader", "DataLoader.__iter__", iterate, "deals the rows of each batch")]
