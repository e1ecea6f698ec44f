"""A batch's type is a subclass of Tensor, and a trained model's one of its class: ``type(x) is`` does not hold."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``type(x) is torch.Tensor`` and ``type(model) is Net``."""
    for node in facts.tree.all(cst.Comparison):
        left = node.left
        if not isinstance(left, cst.Call) or facts.name(left.func) != "type" or len(left.args) != 1:
            continue
        for target in node.comparisons:
            name = facts.name(target.comparator) or ""
            model = name in facts.scopes.classes and Kind.MODULE in facts.inference.class_kinds(name)
            tensor = name == "torch.Tensor" and isinstance(target.operator, (cst.Is, cst.IsNot))
            if tensor or (model and isinstance(target.operator, (cst.Is, cst.IsNot, cst.Equal, cst.NotEqual))):
                yield Finding(
                    node,
                    f"{facts.code(node)} asks for the very class",
                    "a batch is of a subclass of Tensor, and a trained model of one of its own class",
                    f"Write isinstance({facts.code(left.args[0].value)}, {name}).",
                )


RULE = Rule("DDP203", "type-is", "A type is compared with `is`", find, (World.PLAIN, World.DDP_PATCH))
