"""``CUDA_VISIBLE_DEVICES`` set in the script hides the devices of the other ranks."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import string
from ..own_files import is_of_rank
from ..rule import Finding, Rule


def find(facts: Facts) -> Iterator[Finding]:
    """Find assignments to ``os.environ["CUDA_VISIBLE_DEVICES"]``."""
    for node in facts.tree.all(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Subscript) or dotted(target.value) not in ("os.environ", "environ"):
            continue
        index = target.slice[0].slice
        if (
            isinstance(index, cst.Index)
            and string(index.value) == "CUDA_VISIBLE_DEVICES"
            and not is_of_rank(facts, node.value)
        ):
            yield Finding(
                node,
                f"CUDA_VISIBLE_DEVICES is set to {facts.code(node.value)} in the script",
                "every process sets it alike, so a rank that is to use another device does not find it",
                "Set it where the job is started: CUDA_VISIBLE_DEVICES=0,1 torchrun ...",
            )


RULE = Rule("DDP112", "visible-devices", "CUDA_VISIBLE_DEVICES is set in the script", find)
