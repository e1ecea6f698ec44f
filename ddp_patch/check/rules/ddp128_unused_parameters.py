"""Parameters that take no part in a forward: DDP waits for their gradients, and fails in the next one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import is_true
from ..rule import Finding, Rule

_TRAINED = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Conv\w+|BatchNorm\w+|LayerNorm|GroupNorm|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|PReLU|Parameter|MultiheadAttention|Transformer\w*)$"
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find layers that a module's ``__init__`` makes and nothing in the file ever uses."""
    if any(
        is_true(facts.argument(call, "find_unused_parameters"))
        for call in facts.calls("torch.nn.parallel.DistributedDataParallel")
    ):
        return
    if "find_unused_parameters" in facts.elsewhere.words:
        return
    used = _used(facts) | facts.elsewhere.words
    for node in facts.tree.all(cst.Assign):
        target, value = node.targets[0].target, node.value
        name = dotted(target) or ""
        if not name.startswith("self.") or name.count(".") != 1 or not isinstance(value, cst.Call):
            continue
        owner = facts.tree.enclosing(node, cst.ClassDef)
        if owner is None or Kind.MODULE not in facts.inference.class_kinds(owner.name.value) or not _is_plain(owner):
            continue
        if _TRAINED.match(facts.name(value.func) or "") and name.removeprefix("self.") not in used:
            yield Finding(
                node,
                f"{name} = {facts.code(value.func)}(...) is used nowhere",
                "its parameters get no gradient, which DDP waits for: the next forward raises",
                "Take it out, or write DistributedDataParallel(model, find_unused_parameters=True).",
            )


def _is_plain(owner: cst.ClassDef) -> bool:
    """Its forward is in this file, so what it uses can be seen."""
    return any(isinstance(item, cst.FunctionDef) and item.name.value == "forward" for item in owner.body.body)


def _used(facts: Facts) -> set[str]:
    """Name every attribute that is read, and every string, which getattr could be given."""
    assigned = {target.target for node in facts.tree.all(cst.Assign) for target in node.targets}
    read = {node.attr.value for node in facts.tree.all(cst.Attribute) if node not in assigned}
    return read | {node.value.strip("'\"") for node in facts.tree.all(cst.SimpleString)}


RULE = Rule("DDP128", "unused-parameters", "A layer is made and never used", find, of_parts=True)
