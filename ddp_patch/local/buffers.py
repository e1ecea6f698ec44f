"""Buffers that a forward writes to, beside the statistics of BatchNorm: each rank's own until DDP sends rank 0's."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch.world import World


class Buffers:
    """Looks in one step of an epoch whether a module's forward writes to buffers: most are constants."""

    def __init__(self, module: nn.Module, world: World) -> None:
        """Look in the first step.

        Args:
            module: of the script.
            world: the ranks.
        """
        self.is_due = True
        self._module = module
        self._world = world
        self._before: list[tuple[int, int]] | None = None

    def begin(self) -> None:
        """A forward begins."""
        if self.is_due:
            self.is_due, self._before = False, self._state()

    def are_written(self) -> bool:
        """Tell, as a backward has ended, whether some were written to since, on any rank."""
        if self._before is None:
            return False
        is_written, self._before = self._state() != self._before, None
        return any(values[0] for values in self._world.share([is_written]))

    def _state(self) -> list[tuple[int, int]]:
        return [(id(buffer), buffer._version) for buffer in buffers_of(self._module)]


def buffers_of(module: nn.Module) -> list[Tensor]:
    """Give those that BatchNorm over all ranks' rows does not keep alike."""
    layers = [layer for layer in module.modules() if not isinstance(layer, _BatchNorm)]
    return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
