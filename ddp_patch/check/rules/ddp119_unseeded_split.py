"""An unseeded split differs between ranks: rows that one rank trains on, another one evaluates on."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import brief
from ..rule import Finding, Rule

_SEEDS = {
    "torch": ("torch.manual_seed", "torch.random.manual_seed"),
    "numpy": ("numpy.random.seed",),
    "random": ("random.seed",),
}
_SHUFFLES = {"numpy.random.shuffle": "numpy", "numpy.random.permutation": "numpy", "random.shuffle": "random"}


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``random_split`` and shuffled indices of datasets, in files that seed nothing of the kind."""
    if any("seed" in name.lower() for name in (*facts.scopes.functions, *facts.imported, *facts.elsewhere.words)):
        return
    for call in facts.calls("torch.utils.data.random_split"):
        if facts.argument(call, "generator", 2) is None and not facts.calls(*_SEEDS["torch"]):
            yield _finding(facts, call, "Write generator=torch.Generator().manual_seed(0).")
    for name, library in _SHUFFLES.items():
        for call in facts.calls(name):
            if not facts.calls(*_SEEDS[library]) and _splits(facts, call):
                yield _finding(facts, call, f"Write {_SEEDS[library][0]}(0) before it.")


def _splits(facts: Facts, call: cst.Call) -> bool:
    """The shuffled indices are cut in two with a slice and given to samplers or subsets."""
    name = facts.assigned(call) or (dotted(call.args[0].value) if call.args else None)
    if name is None or not facts.calls("torch.utils.data.SubsetRandomSampler", "torch.utils.data.Subset"):
        return False
    sliced = [node for node in facts.tree.all(cst.Subscript) if dotted(node.value) == name]
    return any(isinstance(element.slice, cst.Slice) for node in sliced for element in node.slice)


def _finding(facts: Facts, call: cst.Call, write: str) -> Finding:
    return Finding(
        call,
        f"{brief(facts, call)} draws without a seed",
        "every rank splits otherwise, and trains on rows that another one evaluates on",
        write,
    )


RULE = Rule("DDP119", "unseeded-split", "A dataset is split without a seed", find, training=False)
