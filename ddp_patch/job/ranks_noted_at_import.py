"""Ranks that modules have noted when they were imported: mended where that is known, refused where not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import OrderError
from ..ledger import script_line

_ABSENT = object()


@dataclass(frozen=True)
class RankNote:
    """Where a library keeps a rank that it noted once.

    Attributes:
        module: of the library.
        path: of the attribute in it.
        variable: the rank's, which it noted.
        alone: what one process notes.
    """

    module: str
    path: str
    variable: str
    alone: int


LIBRARIES = (
    # lightning-utilities 0.15: an attribute of the function, set when Lightning is imported.
    RankNote("lightning_utilities.core.rank_zero", "rank_zero_only.rank", "RANK", 0),
    # ultralytics 8.3, whose modules bind it again.
    *(
        RankNote(f"ultralytics.utils{part}", "RANK", "RANK", -1)
        for part in ("", ".torch_utils", ".checks", ".downloads")
    ),
    *(RankNote(f"ultralytics.{part}", "RANK", "RANK", -1) for part in ("engine.trainer", "engine.model", "data.build")),
    *(RankNote(f"ultralytics.data.{part}", "LOCAL_RANK", "LOCAL_RANK", -1) for part in ("base", "dataset", "utils")),
    RankNote("ultralytics.utils", "LOCAL_RANK", "LOCAL_RANK", -1),
)
_NAMES = {
    **dict.fromkeys(("RANK", "_RANK", "rank", "_rank", "global_rank", "GLOBAL_RANK"), "RANK"),
    **dict.fromkeys(("LOCAL_RANK", "_LOCAL_RANK", "local_rank", "_local_rank"), "LOCAL_RANK"),
}
_ENGINES = ("ddp_patch", "torch", "accelerate")


class NotedRanks:
    """The notes of this process's modules."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        """Remember the launcher's variables, which modules may have read."""
        self._variables = variables

    def mend(self) -> None:
        """Have known libraries note one process."""
        for noted in LIBRARIES:
            self._set(noted, noted.alone)

    def break_again(self) -> None:
        """Have known libraries note this rank, as if they had been imported now."""
        for noted in LIBRARIES:
            if noted.variable in self._variables:
                self._set(noted, int(self._variables[noted.variable]))

    def suspects(self) -> dict[str, int]:
        """Find numbers of modules that are called a rank, by their full name: which differ by rank, ranks can tell."""
        handled = {f"{noted.module}.{noted.path}" for noted in LIBRARIES}
        found = {}
        for module in list(sys.modules.values()):
            if type(module) is not ModuleType or module.__name__.partition(".")[0] in _ENGINES:
                continue
            for name in vars(module).keys() & _NAMES.keys():
                value, full = vars(module)[name], f"{module.__name__}.{name}"
                if type(value) is int and str(value) == self._variables.get(_NAMES[name]) and full not in handled:
                    found[full] = value
        return found

    @staticmethod
    def refuse(per_rank: list[dict[str, int]]) -> None:
        """Refuse numbers that are another on every rank.

        Args:
            per_rank: what each rank suspects.

        Raises:
            OrderError: on every rank, naming the first.
        """
        common = sorted(set.intersection(*map(set, per_rank)))
        for name in common:
            values = [suspected[name] for suspected in per_rank]
            if len(set(values)) > 1:
                module, _, attribute = name.rpartition(".")
                what = f"{Path(sys.argv[0]).name} has" if module == "__main__" else f"{module} was imported and has"
                move = "the line that does" if module == "__main__" else f"the import of {module.partition('.')[0]}"
                raise OrderError(
                    f"{script_line()}: {what} set {attribute} to {', '.join(map(str, values))} on the ranks before "
                    "ddp_patch.enable(), so it would go on as one of several processes, and only on some ranks do "
                    f"what one process does. Move {move} below ddp_patch.enable()."
                )

    def _set(self, noted: RankNote, value: int) -> None:
        owner: Any = sys.modules.get(noted.module)
        *parents, attribute = noted.path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        if owner is not None and vars(owner).get(attribute, _ABSENT) is not _ABSENT:
            setattr(owner, attribute, value)
