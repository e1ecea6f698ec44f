"""A loader that is iterated in place of the script's, which keeps answering as before."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import DataLoader

_KEPT = "_ddp_patch_shadow"  # on the loader
_ITERATOR = "_iterator"  # likewise: torch's own, whose workers go on over epochs


class Shadows:
    """Those whose workers go on over epochs. The loader itself keeps its own, which may hold the loader in turn."""

    def __init__(self) -> None:
        """Start with none."""
        self._loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._shown: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()

    def get(self, loader: DataLoader[Any]) -> DataLoader[Any] | None:
        """Give the one of a loader."""
        return vars(loader).get(_KEPT) if loader in self._loaders else None

    def keep(self, loader: DataLoader[Any], shadow: DataLoader[Any]) -> None:
        """Keep one for the epochs to come."""
        self._loaders.add(loader)
        vars(loader)[_KEPT] = shadow

    def drop(self, loader: DataLoader[Any]) -> None:
        """Let go of one, and of its workers."""
        vars(loader).pop(_KEPT, None)

    def show(self, loader: DataLoader[Any], iterator: Any) -> None:
        """Let a loader have the iterator whose workers go on where torch keeps it."""
        self._shown.add(loader)
        vars(loader)[_ITERATOR] = iterator

    def has_workers(self, loader: DataLoader[Any]) -> bool:
        """Tell whether its workers go on: a script that wants new ones, with what it has changed, sets it to None."""
        return loader._iterator is not None

    def close(self) -> None:
        """Let go of all, and of their workers."""
        for loader in list(self._loaders):
            self.drop(loader)
        for loader in list(self._shown):
            vars(loader)[_ITERATOR] = None
        self._loaders.clear()
        self._shown.clear()


def shadow_of(loader: DataLoader[Any], changes: dict[str, Any]) -> DataLoader[Any]:
    """Make a loader of the same class, with some attributes of its own.

    Args:
        loader: of the script.
        changes: the attributes.
    """
    class_ = type(loader)
    if hasattr(class_, "__del__"):  # the script's loader closes what it reads when that goes, not when this does
        class_ = type(class_.__name__, (class_,), {"__del__": lambda self: None, "__module__": class_.__module__})
    shadow: DataLoader[Any] = object.__new__(class_)
    # DataLoader refuses attribute writes after __init__ (torch 2.x __setattr__).
    shadow.__dict__.update(loader.__dict__)
    shadow.__dict__.update(changes)
    return shadow
