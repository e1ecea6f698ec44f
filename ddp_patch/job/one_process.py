"""While a session runs, whoever asks how many processes there are is told: one.

Torch's default process group, Accelerate's state and the launcher's variables are put away where they are looked up, so
that names that were bound early, threads, workers and child processes find the same. Our own collectives name their
process group.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState

from ..errors import OrderError
from ..ledger import script_line
from .ranks_noted_at_import import NotedRanks
from .table import VARIABLES


class OneProcess:
    """What this rank knows of the others, put away and put back."""

    def __init__(
        self, environ: Mapping[str, str], group: dist.ProcessGroup, launchers: dist.ProcessGroup | None = None
    ) -> None:
        """Remember what is to be put away.

        Args:
            environ: the variables as the launcher left them.
            group: the job's, of all ranks; torch's default one, unless the launcher has made that.
            launchers: torch's default process group, where it is the launcher's.
        """
        self.group = group
        self._launchers = launchers
        self.variables = {name: value for name, value in environ.items() if name in VARIABLES}
        self.is_hiding = False
        self.gave_rank = False  # the program got its rank from us: what it calls a rank may be that
        self.asked: set[str] = set()  # variables that the program was told are not there
        self._frozen = NotedRanks(self.variables)

    def hide(self) -> None:
        """Put the ranks away."""
        self._frozen.mend()
        self.is_hiding = True
        self.asked.clear()
        for name in VARIABLES:
            os.environ.pop(name, None)
        # c10d looks it up there whenever it is asked (torch 2.13), unlike functions, which other modules have bound.
        dist.GroupMember.WORLD = None
        _forget_accelerates_state()

    def suspects(self) -> dict[str, int]:
        """Find numbers that modules may have noted as their rank before."""
        return {} if self.gave_rank else self._frozen.suspects()

    def show(self) -> None:
        """Put the variables back as the launcher left them, and the group if it was the launcher who made it."""
        if not self.is_hiding:
            return
        self.is_hiding = False
        for name, value in self.variables.items():
            # A default of the program's, for want of a launcher's, gives way; what it sets unasked is its own.
            if name not in os.environ or name in self.asked:
                os.environ[name] = value
        if self._launchers is not None and dist.GroupMember.WORLD is None:
            dist.GroupMember.WORLD = self._launchers
        _forget_accelerates_state()
        self._frozen.break_again()

    @property
    def other_group(self) -> dist.ProcessGroup | None:
        """A default process group that somebody else has made meanwhile."""
        group = dist.GroupMember.WORLD
        return None if group in (self.group, self._launchers) else group

    def refused(self) -> OrderError | None:
        """Make the error for a process group that came about unseen; None if there is none."""
        other = dist.distributed_c10d._world.default_pg  # GroupMember.WORLD asks it, in a call more (torch 2.13)
        if other is None or other is self.group or other is self._launchers:  # asked before each collective
            return None
        ranks = f"{other.size()} rank{'s' if other.size() > 1 else ''}"
        return OrderError(
            f"{script_line()}: a process group ({dist.get_backend(other)}, {ranks}) was made by a way "
            "that ddp_patch does not know, so that libraries would see some ranks again. Call "
            "torch.distributed.init_process_group by its name, or leave ddp_patch.enable() out of a script that "
            "distributes itself."
        )

    def destroy(self) -> None:
        """Destroy the job's process groups, and nobody else's, and let go of them."""
        if self.group in dist.distributed_c10d._world.pg_map:  # not if the program or Ray destroyed all (torch 2.13)
            if self._launchers is None and self.other_group is None:
                dist.GroupMember.WORLD = self.group  # all groups go with the default one
                dist.destroy_process_group()
            else:
                dist.destroy_process_group(self.group)
        del self.group


def _forget_accelerates_state() -> None:
    # In place: instances share the very dict (accelerate 1.15).
    for state in (PartialState, AcceleratorState):
        state._shared_state.clear()
