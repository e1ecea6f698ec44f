"""What a dataset, a collate function or another one that one rank runs cannot do with batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BatchError
from ..ledger import script_line
from ..structure import leaves_below, nodes_of

if TYPE_CHECKING:
    from .world import World


def refuse_trained(data: Any, world: World) -> None:
    """Raise if samples were computed of what an optimizer trains: gradients would be those of this rank's samples."""
    if any(map(world.is_optimized, leaves_below(nodes_of(data)))):
        raise BatchError(
            f"{script_line()}: a dataset or a collate_fn computes samples of parameters that are trained, which would "
            "get the gradients of one rank's samples only. Compute them under torch.no_grad(), or after the batch was "
            "loaded."
        )


def computes(*, read_by_one: bool) -> BatchError:
    """Say that it computes on batches, in which all ranks take part.

    Args:
        read_by_one: it is run by one rank of each host; otherwise each rank runs it, for rows of its own.
    """
    if read_by_one:
        return BatchError(
            "A dataset or a collate_fn that one rank of each host runs computes on batches, in which all ranks take "
            "part. Write loader = ddp_patch.shard_batch(loader), so that all run it, or do it after the batch was "
            "loaded."
        )
    return BatchError(
        f"{script_line()}: a dataset, of which each rank loads its own rows, computes on batches, in which all ranks "
        "take part. Give it the values: batch.clone().cpu().numpy(). Or do it after the batch was loaded."
    )


def computes_in_turn() -> BatchError:
    """Say that what rank 0 has in turn, for all ranks, computes on batches, in which all of them take part."""
    return BatchError(
        "A function that one rank calls for all computes on a batch that it was not given, in which all ranks take "
        "part. Give it the batch as an argument: the function gets the whole of it."
    )
