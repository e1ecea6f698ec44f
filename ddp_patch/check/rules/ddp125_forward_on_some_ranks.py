"""A DDP module called on rank 0 alone broadcasts its buffers, in evaluation too: rank 0 waits for the others."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule, World

_BUFFERS = re.compile(r"BatchNorm|register_buffer|^resnet|^densenet|^mobilenet|^efficientnet")


def find(facts: Facts) -> Iterator[Finding]:
    """Find calls of a DDP module, or of a function that is given one, under a test on the rank."""
    if not any(_BUFFERS.search(name.value) for name in facts.tree.all(cst.Name)):
        return
    for call in facts.tree.all(cst.Call):
        if not isinstance(call.func, cst.Name):
            continue
        forward = _is_ddp(facts, call.func)
        evaluates = call.func.value.lower().startswith(("eval", "test", "valid")) and any(
            _is_ddp(facts, argument.value) for argument in call.args
        )
        if (forward or evaluates) and facts.on_some_ranks(call):
            yield Finding(
                call,
                f"{facts.code(call.func)}(...) runs a DistributedDataParallel module on some ranks only",
                "where it has buffers (BatchNorm, masks) its forward broadcasts them, and waits for the others",
                "Write model.module(...), or give model.module to the evaluation.",
            )


def _is_ddp(facts: Facts, node: cst.CSTNode) -> bool:
    return Kind.DDP in facts.kinds(node) and isinstance(node, (cst.Name, cst.Attribute))


RULE = Rule(
    "DDP125", "forward-on-some-ranks", "A DDP module is called on some ranks only", find, (World.DDP,), training=False
)
