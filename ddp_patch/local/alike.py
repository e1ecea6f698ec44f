"""Whether all ranks deal the same rows in the same order, which they draw and shuffle each for itself."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset

from ..batch.world import World
from ..diagnosis.first_batches import dataset_row_count
from ..diagnosis.samples import differing, first_samples
from ..errors import LockstepError
from ..ledger import script_line
from ..loading.plan import is_distributed
from .batches import OwnBatches
from .iterator import samplers_of
from .samplers import Dealt, checksum


def compare(world: World, loader: DataLoader[Any], shadow: DataLoader[Any], described: str) -> None:
    """Compare what the ranks are about to deal. Every rank comes here as an epoch begins.

    Args:
        world: the ranks.
        loader: of the script.
        shadow: that reads this rank's rows.
        described: what the loader is like, in words.

    Raises:
        LockstepError: on every rank, when they would deal different rows.
    """
    dataset = loader.dataset
    # What the script deals by a sampler of its own, or streams, may be each rank's own.
    are_dealt = not isinstance(dataset, IterableDataset) and not is_distributed(loader)
    local = [dataset_row_count(dataset), *_chosen(dataset), _begun(shadow)]
    reported = [values[0] for values in world.share([(local, first_samples(dataset) if are_dealt else {})])]
    difference = differing([its[1] for its in reported])
    if difference is None and all(its[0] == reported[0][0] for its in reported):
        return
    found = "" if difference is None else f" ({difference[0]} holds {difference[1]}, by rank, for the same sample)"
    raise LockstepError(
        f"{script_line()}: the ranks deal different rows of {described}{found}: they chose, drew or shuffled them by "
        "their own random numbers, so that some rows would be read twice and others never. Choose them above the "
        "training, or from a seed: random_split(data, sizes, generator=torch.Generator().manual_seed(0)), "
        "random.Random(epoch).shuffle(rows). Rows that each rank "
        "made for itself are put together by ddp_patch.gather(rows)."
    )


def _begun(shadow: DataLoader[Any]) -> int:
    """Begin to draw an epoch, and give a checksum of it."""
    batches, sampler = samplers_of(shadow)
    drawn = batches if isinstance(batches, OwnBatches) else sampler
    return drawn.draw() if isinstance(drawn, (Dealt, OwnBatches)) else 0


def _chosen(dataset: Any) -> list[int]:
    """Checksums of the rows that subsets are of."""
    found = []
    while isinstance(dataset, Subset):
        found.append(checksum(dataset.indices))
        dataset = dataset.dataset
    return found
