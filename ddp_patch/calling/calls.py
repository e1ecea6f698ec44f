"""One call of a module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..batch.sizes import numbers
from ..structure import leaves
from . import swap
from .graph_data import is_graph_batch


@dataclass(frozen=True)
class Call:
    """One call of a module, as the script made it."""

    module: nn.Module
    run: Callable[..., Any]  # the module's call, as torch has it
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dim: int | None = None  # the batch dimension that ``nn.DataParallel(dim=...)`` names
    gathers_scalars: bool = False  # 0-dim outputs are per rank, as DataParallel has them per device

    @functools.cached_property
    def leaves(self) -> list[tuple[str, Any]]:
        """What is in its arguments, and where."""
        if len(self.args) == 1 and not self.kwargs and isinstance(self.args[0], Tensor):  # in most steps
            return [("[0][0]", self.args[0])]
        return leaves((self.args, self.kwargs))

    @property
    def holds_tensors(self) -> bool:
        """Whether it is given any, or a batch of graphs."""
        return any(isinstance(leaf, Tensor) or is_graph_batch(leaf) for _, leaf in self.leaves)

    def as_written(self) -> Any:
        """Let torch do it."""
        return self.run(*self.args, **self.kwargs)

    def with_numbers(self) -> Call:
        """The same call with plain numbers, where a forward on batches hands on a batch size."""
        args, kwargs = numbers(self.args), {name: numbers(value) for name, value in self.kwargs.items()}
        is_same = args is self.args and all(value is self.kwargs[name] for name, value in kwargs.items())
        return self if is_same else self.with_arguments(args, kwargs)

    def with_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The same call with other arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)


def unwrap_compiled(module: nn.Module) -> nn.Module:
    """The module that the script's author wrote, also where ``torch.compile(module)`` gave another one for it."""
    inner: nn.Module = getattr(module, "_orig_mod", module)  # torch 2.13
    return inner


def described(module: nn.Module) -> str:
    """Name a module in the report."""
    count = sum(parameter.numel() for parameter in module.parameters() if not is_lazy(parameter))
    return f"{swap.original_class(module).__name__} ({count:,} parameters)"
