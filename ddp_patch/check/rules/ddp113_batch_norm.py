"""BatchNorm takes its statistics from the rows of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts, Role
from ..rule import Finding, Rule

_LAYERS = tuple(f"torch.nn.BatchNorm{dimensions}d" for dimensions in (1, 2, 3))


def find(facts: Facts) -> Iterator[Finding]:
    """Find BatchNorm layers in a program that trains and never converts them."""
    if Role.DATA_PARALLEL in facts.roles and Role.DDP not in facts.roles:
        return  # nn.DataParallel takes them from the rows of one device as well
    if facts.says("convert_sync_batchnorm", "convert_syncbn_model"):
        return
    layers = facts.calls(*_LAYERS)
    if layers:
        more = f" (and {len(layers) - 1} more)" if len(layers) > 1 else ""
        yield Finding(
            layers[0],
            f"{facts.code(layers[0].func)}{more} is not synchronised",
            "it normalises by the mean and variance of one rank's rows, a smaller batch than the script's",
            "Write model = nn.SyncBatchNorm.convert_sync_batchnorm(model) before DistributedDataParallel(model).",
        )


RULE = Rule("DDP113", "batch-norm", "BatchNorm is not synchronised", find, of_parts=True)
