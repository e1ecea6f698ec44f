"""A forward that reads a value of its batch runs on whole batches, on every rank."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import OF_ROWS, Facts, Kind, dotted
from ..literals import brief
from ..rule import Finding, Rule, World

_READS = ("item", "tolist", "numpy")
READERS = (World.PLAIN, World.DDP_PATCH)


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``.item()``, ``.tolist()`` and ``.numpy()`` in the ``forward`` of a module."""
    for call in facts.methods(*_READS):
        receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
        if receiver is None or not reads(facts, call) or not in_forward(facts, call):
            continue
        if facts.kinds(receiver) & OF_ROWS or is_argument(facts, receiver):
            yield Finding(
                call,
                f"{brief(facts, call)} reads a value of the batch in a forward",
                "this module runs on whole batches, on every rank: exact, and no faster than one process",
                "Keep it a tensor (torch.where, masks), or read the value outside of the model.",
            )


def reads(facts: Facts, call: cst.Call) -> bool:
    """Tell whether a call reads values: ``x.item()``, ``self.scale.tolist()``."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _READS and not call.args


def in_forward(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether a node stands in the ``forward`` of a module."""
    function = facts.tree.enclosing(node, cst.FunctionDef)
    owner = facts.tree.enclosing(function, cst.ClassDef) if function is not None else None
    if function is None or owner is None or function.name.value != "forward":
        return False
    kinds = facts.inference.class_kinds(owner.name.value)
    return Kind.MODULE in kinds and not any("Function" in (dotted(base.value) or "") for base in owner.bases)


def is_argument(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is of an argument of the function around it, other than ``self``."""
    roots = facts.tree.within(node, cst.Name)
    function = facts.tree.enclosing(node, cst.FunctionDef)
    if function is None or not roots:
        return False
    variable = facts.scopes.inside(function).variables.get(roots[0].value)
    return variable is not None and variable.parameter and roots[0].value != "self"


RULE = Rule("DDP205", "forward-reads-values", "A forward reads a value of its batch", find, READERS, training=False)
