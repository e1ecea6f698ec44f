"""A list of devices that is written down is the same for all processes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import number
from ..rule import Finding, Rule

_WRAPPERS = (
    "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.data_parallel",
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``device_ids=[0, 1]`` of numbers, in a wrapper of a module."""
    for call in facts.calls(*_WRAPPERS):
        ids = facts.argument(call, "device_ids", 2 if (facts.name(call.func) or "").endswith("data_parallel") else 1)
        if (
            isinstance(ids, (cst.List, cst.Tuple))
            and ids.elements
            and all(number(element.value) is not None for element in ids.elements)
        ):
            yield Finding(
                ids,
                f"device_ids={facts.code(ids)} is written down",
                "every process would use these same devices; a process of DDP has one of its own",
                "Write device_ids=[local_rank], with local_rank = int(os.environ['LOCAL_RANK']).",
            )


RULE = Rule("DDP109", "device-ids", "device_ids of numbers that are written down", find, training=False)
