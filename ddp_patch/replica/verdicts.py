"""What was found out about each module: whether its rows may be computed apart, and which arguments are batches."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..batch.world import World
from . import swap
from .probe import Verdict, judge
from .rows import Entry, enter


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module, as the script made it."""

    module: nn.Module
    run: Callable[..., Any]  # the module's call, as torch has it
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dim: int | None = None  # the batch dimension that ``nn.DataParallel(dim=...)`` names
    vector: bool = False  # 0-dim outputs are per rank, as DataParallel has them per device

    def as_written(self) -> Any:
        """Let torch do it."""
        return self.run(*self.args, **self.kwargs)

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The same call with other arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)


class Verdicts:
    """Judges a module at its first call in each mode, and remembers."""

    def __init__(self, world: World, batch_dims: Mapping[str, int | None]) -> None:
        """Start without any verdict."""
        self._world = world
        self._batch_dims = batch_dims
        # module -> verdict by training mode, in which many forwards differ, and by what becomes of scalars
        self._verdicts: weakref.WeakKeyDictionary[nn.Module, dict[tuple[bool, bool], Verdict]] = (
            weakref.WeakKeyDictionary()
        )
        # module -> batch dimension by name and number of dimensions of an argument
        self._memory: weakref.WeakKeyDictionary[nn.Module, dict[tuple[str, int], int | None]] = (
            weakref.WeakKeyDictionary()
        )

    def known(self, module: nn.Module, vector: bool = False) -> Verdict | None:
        """Give the verdict on a module in the mode it is in, if there is one."""
        return self._verdicts.get(module, {}).get((module.training, vector))

    def enter(self, call: Call, rows: int | None) -> Entry | None:
        """Cut a call's arguments to this rank's rows; None if nothing in them is a batch.

        Args:
            call: of the script.
            rows: size of the batch the script is working on, as far as it is known.
        """
        memory = self._memory.setdefault(call.module, {})
        return enter(call.module, call.args, call.kwargs, rows, self._batch_dims, memory, call.dim)

    def on(self, call: Call, entry: Entry, rows: int | None) -> tuple[Entry, Verdict]:
        """Give the verdict on a module, and how it is entered if a guess about its arguments was wrong."""
        known = self.known(call.module, call.vector)
        if known is not None:
            return entry, known
        verdict = judge(call.module, call.args, call.kwargs, entry, call.vector)
        if verdict.kind != "rows" and entry.guessed:
            self._memory[call.module].update(dict.fromkeys(entry.guessed))
            again = self.enter(call, rows)
            assert again is not None
            entry, verdict = again, judge(call.module, call.args, call.kwargs, again, call.vector)
        self._verdicts.setdefault(call.module, {})[call.module.training, call.vector] = verdict
        if verdict.kind != "rows":
            self._world.ledger.whole_modules[described(call.module)] = verdict.reason
        return entry, verdict


def described(module: nn.Module) -> str:
    """Name a module in the report."""
    count = sum(parameter.numel() for parameter in module.parameters())
    return f"{swap.original_class(module).__name__} ({count:,} parameters)"
