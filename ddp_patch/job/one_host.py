"""Where the ranks of our own agent meet: a store that this host alone reaches.

torchrun's own way, ``--standalone``, opens two stores to all hosts, and unpickles what it finds in the first
(torch 2.13, ``dynamic_rendezvous.py``).
"""

from __future__ import annotations

import uuid

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in its __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from .loopback import ADDRESS, listening_store

_NAME = "ddp_patch"


class OneHost(RendezvousHandler):
    """The one agent of a job on one host."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        """Take a port that is free.

        Args:
            parameters: of the run.
        """
        self._run = parameters.run_id
        self._store, self._port = listening_store()
        self._is_closed = False

    def get_backend(self) -> str:
        """Name this way to meet."""
        return _NAME

    @property
    def use_agent_store(self) -> bool:
        """The ranks use it as well."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet nobody else."""
        store_info = RendezvousStoreInfo(ADDRESS, self._port)
        return RendezvousInfo(PrefixStore(self._run, self._store), 0, 1, store_info)

    def is_closed(self) -> bool:
        """Whether the ranks have ended."""
        return self._is_closed

    def set_closed(self) -> None:
        """Note that the ranks have ended."""
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        """Nobody joins."""
        return 0

    def get_run_id(self) -> str:
        """Name the run."""
        return self._run

    def shutdown(self) -> bool:
        """Leave the store to the end of this process, as torchrun's static way does."""
        return True


rendezvous_handler_registry.register(_NAME, OneHost)


def arguments() -> list[str]:
    """What torchrun is told, to meet so."""
    return [f"--rdzv-backend={_NAME}", f"--rdzv-id={uuid.uuid4()}", f"--rdzv-endpoint={ADDRESS}:0", "--nnodes=1"]
