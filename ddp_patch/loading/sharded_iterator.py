"""Every rank loads its own rows of each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import script_thread
from ..batch.in_datasets import refuse_trained
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..errors import BatchError
from ..ledger import script_line
from ..structure import leaves
from .batches import BatchDims, as_dealt
from .collated import Collated, are_plain_tensors
from .generators import seeds_in
from .sampler import DealtBatches

_WORKER_ADVICE = (
    "A worker that is killed has often used up the memory of the host, or of /dev/shm: write a smaller num_workers. "
    "One that is late needs a longer timeout."
)


class ShardedIterator:
    """An iterator over this rank's rows."""

    def __init__(
        self,
        iterator: Any,
        sampler: DealtBatches,
        world: World,
        name: str,
        described: str,
        collated: Collated,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Wrap torch's iterator.

        Args:
            iterator: fetches this rank's rows.
            sampler: that it draws from.
            world: the ranks.
            name: of this epoch, the same on every rank.
            described: names the loader in errors.
            collated: what is known of the loader's batches.
            collate: of the script, for an iterator that gives samples; it sees those of all ranks.
        """
        self.iterator = iterator
        self._sampler = sampler
        self._world = world
        self._name = name
        self._described = described
        self._collated = collated
        self._collate = collate
        self._has_workers = getattr(iterator, "_num_workers", 0) > 0
        self._seen = BatchDims()
        self._fetched = 0
        self._exchanged = 0

    def next(self) -> tuple[Any, int | None]:
        """Fetch rows, and make the batch that they are a part of."""
        self._fetched += 1
        fetching = self._world.fetching.set(True)
        try:
            data = next(self.iterator)
            is_plain = are_plain_tensors(data)
            if not is_plain:
                refuse_trained(data, self._world)
        except StopIteration as error:
            if self._sampler.sizes:  # it was not the sampler that ended, but an item that raised it
                self._sampler.sizes.popleft()
                self._compare(RuntimeError(f"StopIteration({error})"))
            raise
        except Exception as error:
            if self._sampler.sizes:  # a script that catches it goes on with the next batch
                self._sampler.sizes.popleft()
            self._compare(error)
            raise
        finally:
            self._world.fetching.reset(fetching)
            if self._sampler.generators is not None:
                self._sampler.generators.leave()
        rows, layout = self._sampler.sizes.popleft()
        if not is_plain and any(isinstance(leaf, BatchTensor) for _, leaf in leaves(data)):
            raise BatchError(
                f"{script_line()}: {self._described} is made of batches of another loader, of which every rank holds "
                "its rows. Write loader = ddp_patch.read_once(loader), so that every rank reads all of it."
            )
        if layout is None and self._has_workers:
            # Fewer rows than ranks: all hold all of them, but their workers draw from generators of their own.
            data = self._leaders(data)
        if self._collate is not None:
            samples = data if layout is None else [sample for part in self._share(data) for sample in part]
            return as_dealt(self._collate(samples), self._world, len(samples), self._seen)[0], len(samples)
        return (data if layout is None else self._collated.as_batch(data, layout, self._share, self._seeds_made)), rows

    def _seeds_made(self) -> list[str]:
        return [] if self._has_workers else seeds_in(self.iterator._dataset)

    def _leaders(self, data: Any) -> Any:
        """What rank 0 has."""
        if script_thread.is_here():
            return self._world.leaders(data)
        return self._share(data if self._world.rank == 0 else None)[0]

    def _share(self, part: Any) -> list[Any]:
        if script_thread.is_here():
            return [parts[0] for parts in self._world.share([part])]
        # A thread that reads ahead is at another collective on another rank.
        self._exchanged += 1
        return self._world.exchange(f"{self._name}, exchange {self._exchanged}", part)

    def _compare(self, error: Exception) -> None:
        where = f"batch {self._fetched} of {self._name}, {self._described},"
        if "DataLoader worker" in str(error):  # torch's words for one that died or is late
            self._world.check_all_failed(error, f"{where} lost a worker and", _WORKER_ADVICE)
        else:
            self._world.check_all_failed(error, where)


def keep_samples(samples: list[Any]) -> list[Any]:
    """Collate samples to a list of them, which is what ranks exchange."""
    return samples
