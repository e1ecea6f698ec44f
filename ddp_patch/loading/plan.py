"""How the batches of each loader reach the ranks, decided from what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, StackDataset, Subset, TensorDataset
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler

from ..batch.tensor import BatchTensor
from ..errors import BatchError
from ..ledger import script_line
from ..structure import leaves
from .generators import generators_of
from .reachable import asks_for_its_worker, shared_with_children, takes_in_turn

_CHOICE = "_ddp_patch_rows"  # on the loader, so that subclasses and copies keep it
_INDICES = (list, tuple, range, Tensor)  # of a subset, which nothing of the script's own gives
RUNS = "_ddp_patch_runs"  # likewise: its workers were started, and go on over epochs
_SHARD_BATCH = "ddp_patch.shard_batch(loader) has every rank load its own rows, and collates the whole of them on each"


class Read(Enum):
    """Who reads what of a loader."""

    OWN_ROWS = "each rank loads and collates its rows of a batch"
    OWN_SAMPLES = "each rank loads its samples of a batch, and collates all of them"
    PER_HOST = "one rank of each host reads batches, and hands them to the others"
    AS_WRITTEN = "each rank reads all of it, as it is: the script deals the rows itself"


@dataclass(frozen=True)
class Plan:
    """What a rank does for a loader."""

    by: Read
    reason: str  # for the report


def choose(loader: DataLoader[Any], rows: str) -> None:
    """Settle how a loader is read, against what would be decided.

    Raises:
        BatchError: when its rows cannot be loaded apart, or its workers were started already.
    """
    if RUNS in vars(loader) and vars(loader).get(_CHOICE) != rows:
        raise BatchError(
            f"{script_line()}: ddp_patch.{rows}(loader) came after the first epoch of a loader with "
            "persistent_workers=True, whose workers read already. Move the line to where the loader is made."
        )
    if rows == "shard_batch" and not _has_batches(loader):
        what = "an iterable dataset" if isinstance(loader.dataset, IterableDataset) else "batch_size=None"
        raise BatchError(
            f"{script_line()}: ddp_patch.shard_batch(loader): the loader has {what}, so that only reading it tells "
            "which rows a batch has. Leave the line out: one rank of each host reads it, and every rank computes its "
            "own rows."
        )
    vars(loader)[_CHOICE] = rows


def is_settled(loader: DataLoader[Any]) -> bool:
    """Tell whether the script has said how a loader is read."""
    return _CHOICE in vars(loader)


def plan(loader: DataLoader[Any], size: int, is_one_host: bool) -> Plan:
    """Decide how a loader's batches reach the ranks.

    Args:
        loader: of the script.
        size: the number of ranks.
        is_one_host: all are on one.
    """
    choice = vars(loader).get(_CHOICE)
    if is_distributed(loader):
        return Plan(Read.AS_WRITTEN, "left alone: it has a DistributedSampler")
    if _holds_batches(loader.dataset):
        if loader.num_workers > 0:
            raise BatchError(
                f"{script_line()}: the workers of a loader cannot read batches of another loader, of which every rank "
                "holds its rows. Write num_workers=0: what is read is in memory already."
            )
        return Plan(Read.AS_WRITTEN, "left alone: it holds batches of another loader")
    if isinstance(loader.dataset, IterableDataset):
        return _per_host("an iterable dataset")
    if loader.batch_sampler is None:
        return _per_host("batch_size=None, the dataset makes the batches")
    if choice == "read_once":
        return _per_host("as ddp_patch.read_once(loader) says")
    if not loader.in_order and loader.num_workers > 0 and is_one_host and choice != "shard_batch":
        return _per_host(
            "in_order=False, the order in which its workers are done",
        )
    if choice != "shard_batch" and takes_in_turn(loader.dataset):
        return _per_host("its dataset gives what comes next, whichever row is asked for")
    if loader.num_workers == 0 and choice != "shard_batch" and generators_of(loader):
        return _per_host("its dataset or collate_fn holds a generator of its own")
    shared = shared_with_children(loader) if choice != "shard_batch" else []
    if shared:
        what = type(shared[0]).__name__
        return _per_host(
            f"it holds a multiprocessing {what} for its workers; {_SHARD_BATCH}",
        )
    if loader.num_workers > 0 and choice != "shard_batch" and asks_for_its_worker(loader):
        return _per_host(f"it asks which of its workers loads; {_SHARD_BATCH}")
    if loader.num_workers > 0 and (loader.batch_size or size) < size and choice != "shard_batch":
        return _per_host(f"batch_size={loader.batch_size} are fewer rows than there are ranks")
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        if choice == "shard_batch":
            raise BatchError(
                f"{script_line()}: {type(loader).__name__}'s iterator works on whole batches. Leave out "
                "ddp_patch.shard_batch(loader): one rank of each host reads them."
            )
        return _per_host("its iterator works on whole batches")
    if choice != "shard_batch" and _gives_several(loader.dataset):
        return _per_host(f"its dataset's __getitems__ may look at the whole batch; {_SHARD_BATCH}")
    if loader.collate_fn is default_collate and (_collates_as_torch_does() or is_of_tensors(loader)):
        return Plan(Read.OWN_ROWS, "rows dealt: each rank loads its own")
    if choice == "shard_batch":
        return Plan(
            Read.OWN_SAMPLES,
            "rows dealt, as ddp_patch.shard_batch(loader) says: each rank loads its own, all collate all",
        )
    if loader.collate_fn is default_collate:
        return _per_host(f"default_collate was told of types of the script's own; {_SHARD_BATCH}")
    return _per_host(f"its collate_fn may look at the whole batch; {_SHARD_BATCH}")


def agreed(local_plan: Plan, planned: list[str]) -> Plan:
    """Settle on one plan, where ranks find other things in a loader since one of them alone has read it or another.

    Its dataset may have made a generator, its collate function told ``default_collate`` of a type.

    Args:
        local_plan: the plan of this rank.
        planned: how each rank would read.
    """
    if Read.PER_HOST.name in planned and local_plan.by is not Read.PER_HOST:
        return Plan(Read.PER_HOST, "read by one rank of each host, as another rank has to")
    return local_plan


def is_of_tensors(loader: DataLoader[Any]) -> bool:
    """Tell a loader of tensors in memory, which are read by code of torch alone, and so without drawing anything."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset and type(dataset.indices) in _INDICES:
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or any(type(tensor) is not Tensor for tensor in dataset.tensors):
        return False
    return loader.collate_fn is default_collate and _collates_as_torch_does((tuple, Tensor))


def _gives_several(dataset: Any) -> bool:
    """Tell whether code of the script's own gets all samples of a batch from a dataset at once."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(map(_gives_several, parts.values() if isinstance(parts, dict) else parts))
    if not callable(getattr(dataset, "__getitems__", None)):
        return False
    # Hugging Face's reads the rows of a table, one like another, unless it was given a transform of batches.
    is_table = type(dataset).__module__ == "datasets.arrow_dataset"
    return not is_table or dataset.format["type"] == "custom"


def _collates_as_torch_does(known: tuple[type, ...] = (object,)) -> bool:
    """Tell whether nobody has told ``default_collate`` of types of their own, of which it may make anything.

    Args:
        known: the types of what it is given. Libraries tell it of others when they are imported.
    """
    told = [
        kind
        for kind, function in default_collate_fn_map.items()
        if not getattr(function, "__module__", "").startswith("torch.")
    ]
    return not told if object in known else not any(issubclass(its, kind) for its in known for kind in told)


def _per_host(why: str) -> Plan:
    return Plan(Read.PER_HOST, f"read by one rank of each host: {why}")


def is_distributed(loader: DataLoader[Any]) -> bool:
    """Tell whether the script deals the rows itself."""
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1 for sampler in samplers)


def _holds_batches(dataset: Any) -> bool:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return (
        isinstance(dataset, (list, tuple))
        and len(dataset) > 0
        and any(isinstance(leaf, BatchTensor) for _, leaf in leaves(dataset[0]))
    )


def _has_batches(loader: DataLoader[Any]) -> bool:
    return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)
