"""A debugger cannot stop in what one rank runs for itself: a dataset's items, a ``collate_fn``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..rule import Finding, Rule, World

_STOPS = ("breakpoint", "pdb.set_trace", "ipdb.set_trace", "IPython.embed")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``breakpoint()`` in ``__getitem__``, or in a function that is a loader's ``collate_fn``."""
    collates = {dotted(facts.argument(call, "collate_fn")) for call in facts.calls("torch.utils.data.DataLoader")}
    for call in facts.calls(*_STOPS):
        function = facts.tree.enclosing(call, cst.FunctionDef)
        name = function.name.value if function is not None else None
        if name == "__getitem__" or (name is not None and name in collates):
            yield Finding(
                call,
                f"{facts.code(call)} stands in {name}",
                "one rank runs it for itself, and a debugger is one for all ranks: this is an error",
                "Debug it with ddp_patch.enable(nproc=1).",
            )


RULE = Rule(
    "DDP220",
    "debugger-in-dataset",
    "A debugger stops in a dataset",
    find,
    (World.PLAIN, World.DDP_PATCH),
    training=False,
)
