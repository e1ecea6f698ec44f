"""Where loaded tensors go: to this rank's device, wherever they were when they were saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..structure import map_leaves


class DeviceMap:
    """Redirects the accelerators that a script names to this rank's."""

    def __init__(self, device: torch.device) -> None:
        """Redirect to a device."""
        self.device = torch.device("cpu") if device.type == "cpu" else device
        self.chosen = 0  # the index that one process would be at: by default, or by the script's choice
        self._cache: dict[str | torch.device, str | torch.device] = {}
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self._kinds = {"cuda", device.type, *([accelerator.type] if accelerator is not None else [])} - {"cpu"}

    def of(self, place: Any) -> Any:
        """This rank's device, for a string, a ``torch.device`` or an index that names an accelerator."""
        kind = type(place)
        if kind is torch.device or kind is str:
            cached = self._cache.get(place)  # scripts name few
            if cached is None:
                cached = self._cache[place] = self._redirected(place)
            return cached
        return self.device if kind is int else place

    def choose(self, place: Any) -> None:
        """Note the accelerator that the script makes the present one."""
        index = torch.device(place).index if isinstance(place, (str, torch.device)) else place
        if isinstance(index, int) and index >= 0:  # torch does nothing with others
            self.chosen = index

    def _redirected(self, place: str | torch.device) -> str | torch.device:
        if isinstance(place, str):
            return str(self.device) if place.partition(":")[0] in self._kinds else place
        return self.device if place.type in self._kinds else place

    def bring(self, data: Any) -> Any:
        """Move the tensors of a structure to this rank's device."""
        return map_leaves(lambda leaf: leaf.to(self.device) if _is_elsewhere(leaf, self.device) else leaf, data)

    def map_location(self, location: Any) -> Any:
        """The ``map_location`` of ``torch.load`` that a script would have to write on this rank.

        Args:
            location: what it wrote: None, a device, a dict of devices, or a function.
        """
        if callable(location):
            return lambda storage, place: self._placed(location(storage, place), storage, place)
        if isinstance(location, Mapping):
            return {**{place: self.of(target) for place, target in location.items()}, **self._rest(location)}
        if location is None:
            return lambda storage, place: self._placed(None, storage, place)
        return self.of(location)

    def _rest(self, locations: Mapping[Any, Any]) -> dict[str, Any]:
        # torch leaves what is not in the dict where it was saved.
        places = ("cuda", *(f"cuda:{index}" for index in range(64)))
        return {place: str(self.device) for place in places if place not in locations}

    def _placed(self, result: Any, storage: Any, place: str) -> Any:
        if result is None:
            target = self.of(place)
            return None if target == place else torch.serialization.default_restore_location(storage, target)
        if isinstance(result, (torch.UntypedStorage, torch.TypedStorage)):
            moved = self.of(result.device)
            return (
                result if moved == result.device else torch.serialization.default_restore_location(storage, str(moved))
            )
        return result


def _is_elsewhere(leaf: Any, device: torch.device) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device != device
