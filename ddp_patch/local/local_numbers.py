"""Numbers of one rank's rows that the script shows, keeps or decides by, as if they were those of all rows.

Each rank keeps a checksum of what it prints, saves and branches on, line by line of the script. Where the ranks' differ
once an epoch, the value was a rank's own, and the report says so.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from typing import Any

import torch

from ..batch.world import World
from ..errors import LockstepError
from ..ledger import script_line
from ..structure import leaves, strided

_WHY = (
    "a number of each rank's own rows, for which write ddp_patch.mean(value), or sum or gather, where all ranks come "
    "by; or a rank's own clock"
)
_ends = itertools.count(1)
_FIRST = 64  # numbers of a tensor that are looked at
_MOST = 200  # lines that are remembered


class LocalNumbers:
    """What this rank has told whom."""

    def __init__(self, world: World, rates: Callable[[], list[float]]) -> None:
        """Start with nothing.

        Args:
            world: the ranks.
            rates: gives the learning rates of this rank's optimizers.
        """
        self.steps = 0  # of optimizers that train a model under DDP
        self._world = world
        self._rates = rates
        self._sums: dict[tuple[str, str], int] = {}

    def note_output(self, how: str, text: str) -> None:
        """Remember something that the script lets out.

        Args:
            how: "printed", "saved", ...
            text: what it came to.
        """
        key = script_line(), how
        if key in self._sums or len(self._sums) < _MOST:
            self._sums[key] = zlib.crc32(text.encode("utf-8", "replace"), self._sums.get(key, 0))

    def compare(self) -> None:
        """Find lines where the ranks differ. Every rank comes here together.

        Raises:
            LockstepError: on every rank, when some have stepped more often than others, or at other learning rates.
        """
        reports = [values[0] for values in self._world.share([(self.steps, self._taken(), self._rates())])]
        why = _parted([its[0] for its in reports], [its[2] for its in reports])
        if why is not None:
            raise why
        self._compare([its[1] for its in reports])

    def compare_at_the_end(self) -> None:
        """Do so where ranks meet no more, but for the store of the job; nobody is left to catch an error."""
        name = f"what ranks let out, at the end of session {next(_ends)}"
        self._world.post(name, json.dumps([self.steps, self._taken(), self._rates()]).encode())
        reports = [json.loads(its) for its in self._world.wait_until_all_posted(name)]
        why = _parted([its[0] for its in reports], [its[2] for its in reports])
        if why is not None:
            self._world.ledger.warn(str(why).removesuffix("."))
        self._compare([its[1] for its in reports])

    def _taken(self) -> list[tuple[str, str, int]]:
        taken = [(line, how, found) for (line, how), found in self._sums.items()]
        self._sums.clear()
        return taken

    def _compare(self, reports: list[list[tuple[str, str, int]]]) -> None:
        sums = [{(line, how): found for line, how, found in its} for its in reports]
        for line, how in {key: None for its in sums for key in its}:
            if len({its.get((line, how)) for its in sums}) > 1:
                self._world.ledger.note(f"{line}: {how}, which differs between the ranks: {_WHY}")


def _parted(steps: list[int], rates: list[list[float]]) -> LockstepError | None:
    if len(set(steps)) > 1:
        return _left_out(steps)
    # Optimizers that nobody holds go when the garbage collector of a rank comes by.
    if len({len(its) for its in rates}) == 1:
        for its in zip(*rates, strict=True):
            if len(set(its)) > 1:
                return _other_rates(its)
    return None


def _other_rates(rates: tuple[float, ...]) -> LockstepError:
    return LockstepError(
        f"{script_line()}: an optimizer has other learning rates on the ranks: {[*rates]}, by rank, so that their "
        "models would not stay the same. A scheduler steps by a number of each rank's own rows, as ReduceLROnPlateau "
        "does. Write `scheduler.step(ddp_patch.mean(loss))`."
    )


def _left_out(steps: list[int]) -> LockstepError:
    return LockstepError(
        f"{script_line()}: optimizers made different numbers of steps: {steps}, by rank, so that the ranks' models are "
        "not the same any more. Ranks leave a step out by a number of their own rows, as in `if loss.isnan(): "
        "continue`. Decide by `ddp_patch.mean(loss)`."
    )


def digest(saved: Any) -> str:
    """Put what is saved into words that tell numbers of one rank from those of another."""
    words = []
    for path, leaf in leaves(saved):
        if isinstance(leaf, torch.Tensor):
            if leaf.dtype != torch.uint8:  # states of generators, which are each rank's own
                words += [f"{path}={part.flatten()[:_FIRST].tolist()}" for part in strided(leaf.detach())]
        elif isinstance(leaf, (bytes, bytearray)):
            words.append(f"{path}={zlib.crc32(leaf)}")
        elif isinstance(leaf, (int, float, str)):
            words.append(f"{path}={leaf}")
    return ";".join(words)
