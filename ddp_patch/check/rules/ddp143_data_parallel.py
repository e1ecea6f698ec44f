"""nn.DataParallel is one process for all devices: a process for each is faster, and what torch advises."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``nn.DataParallel(...)`` and ``data_parallel(...)`` in files without DDP."""
    for call in facts.calls("torch.nn.DataParallel", "torch.nn.parallel.data_parallel"):
        if call.args and not _lacks_devices(facts, call):
            yield Finding(
                call,
                f"{brief(facts, call)} is one process for all devices",
                "each process has one device and this wrapper has nothing to do",
                "Write import ddp_patch; ddp_patch.enable() on top, or DistributedDataParallel(model).",
            )


def _lacks_devices(facts: Facts, call: cst.Call) -> bool:
    """``if torch.cuda.is_available(): ... else: m = DataParallel(m)``: without a device it does nothing."""
    inner: cst.CSTNode = call
    for outer in facts.tree.ancestors(call):
        if isinstance(outer, cst.If) and inner is outer.orelse and isinstance(inner, cst.Else):
            return facts.code(outer.test) in ("torch.cuda.is_available()", "use_cuda", "args.cuda", "opt.cuda")
        inner = outer
    return False


RULE = Rule(
    "DDP143",
    "data-parallel",
    "nn.DataParallel where a process for each device is faster",
    find,
    (World.PLAIN,),
    training=False,
)
