"""Copies of what an autograd function of the script's is given, to try it on."""

from __future__ import annotations

import contextlib
import copy
import functools
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from ..batch.tensor import BatchTensor
from ..structure import map_leaves


class Twins:
    """Stand for what a function is given: it may write to tensors, and call modules, which count, track and train."""

    def __init__(self) -> None:
        self._memo: dict[int, Any] = {}  # of deepcopy: what was given twice is copied once
        self._modules: list[nn.Module] = []

    def of(self, leaf: Any) -> Any:
        """Give what stands for one argument, or for what a function among them is bound to or closes over."""
        if isinstance(leaf, nn.Parameter):  # a module among the arguments has it as well
            return copy.deepcopy(leaf, self._memo)
        if isinstance(leaf, Tensor):
            twin = leaf.detach().clone()
            return twin if isinstance(leaf, BatchTensor) else twin.requires_grad_(leaf.requires_grad)
        if isinstance(leaf, nn.Module):
            self._modules.append(copy.deepcopy(leaf, self._memo))
            return self._modules[-1]
        if isinstance(leaf, MethodType):
            return MethodType(self.of(leaf.__func__), self.of(leaf.__self__))
        if isinstance(leaf, functools.partial):
            return functools.partial(self.of(leaf.func), *map(self.of, leaf.args), **map_leaves(self.of, leaf.keywords))
        if isinstance(leaf, FunctionType) and leaf.__closure__:
            return self._closed_over(leaf)
        return leaf

    def have_gradients(self) -> bool:
        """Tell whether something added to gradients of modules that were called."""
        return any(parameter.grad is not None for module in self._modules for parameter in module.parameters())

    def _closed_over(self, function: FunctionType) -> FunctionType:
        if id(function) in self._memo:
            return self._memo[id(function)]  # type: ignore[no-any-return]  # it calls itself
        cells = [CellType() for _ in function.__closure__ or ()]
        twin = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        self._memo[id(function)] = twin
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing was assigned yet
                content = original.cell_contents
                is_called = isinstance(content, (nn.Module, MethodType, FunctionType, functools.partial))
                cell.cell_contents = self.of(content) if is_called else content
        return twin
