"""``.cuda()`` means the current device, which is the first one until ``set_device`` says otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from ...source import Facts
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first bare ``.cuda()`` of a file that joins a group and never calls ``set_device``."""
    if facts.says("set_device", "set_device_index"):
        return
    if not facts.calls("torch.distributed.init_process_group"):
        return
    bare = [call for call in facts.methods("cuda") if not call.args]
    if bare:
        yield Finding(
            bare[0],
            f"{facts.code(bare[0])} goes to the current device, which nothing in this file sets",
            "every rank of a host computes on cuda:0",
            "Write torch.cuda.set_device(local_rank) before anything touches CUDA.",
        )


RULE = Rule("DDP111", "no-set-device", ".cuda() without torch.cuda.set_device", find, (World.DDP,))
