"""A port that is written down is taken as soon as a second job starts on the host."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import string
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``os.environ["MASTER_PORT"] = "12355"`` and ``init_method="tcp://localhost:23456"``."""
    for node in facts.tree.all(cst.Assign):
        target = node.targets[0].target
        if isinstance(target, cst.Subscript) and dotted(target.value) in ("os.environ", "environ"):
            index = target.slice[0].slice
            if isinstance(index, cst.Index) and string(index.value) == "MASTER_PORT" and string(node.value):
                yield _finding(node, facts.code(node.value))
    for call in facts.calls("torch.distributed.init_process_group"):
        method = facts.argument(call, "init_method", 1)
        address = string(method)
        if method is not None and address and address.startswith("tcp://") and address.rpartition(":")[2].isdigit():
            yield _finding(method, address)


def _finding(node: cst.CSTNode, port: str) -> Finding:
    return Finding(
        node,
        f"the port {port} is written down",
        "a second job on this host finds it taken: address already in use",
        "Start with torchrun --standalone, which finds a free one, and leave it out here.",
    )


RULE = Rule("DDP146", "fixed-port", "The port of the process group is written down", find, (World.DDP,), training=False)
