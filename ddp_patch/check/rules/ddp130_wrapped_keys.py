"""The keys of a DDP module's state begin with ``module.``: the plain model does not load them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind
from ..rule import Finding, Rule, World


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``torch.save`` of the ``state_dict()`` of a DDP module."""
    for save in facts.calls("torch.save"):
        for call in facts.tree.within(save, cst.Call):
            if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "state_dict":
                continue
            model = call.func.value
            if (
                Kind.DDP in facts.kinds(model)
                and isinstance(model, (cst.Name, cst.Attribute))
                and not _bare(facts, model)
            ):
                yield Finding(
                    call,
                    f"{facts.code(call)} is of a DistributedDataParallel module",
                    "its keys begin with 'module.', which the model itself does not load",
                    f"Write {facts.code(model)}.module.state_dict().",
                )


def _bare(facts: Facts, model: cst.BaseExpression) -> bool:
    """``model.module if hasattr(model, "module") else model`` is what the wrapper holds."""
    variable = facts.scopes.find(facts.code(model), facts.scopes.of(model))
    values = variable.values if variable is not None else []
    attributes = [part for value in values for part in facts.tree.within(value.node, cst.Attribute)]
    return any(part.attr.value == "module" for part in attributes)


RULE = Rule(
    "DDP130", "wrapped-keys", "The state of a DDP module is saved with its prefix", find, (World.DDP,), training=False
)
