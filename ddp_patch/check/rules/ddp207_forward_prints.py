"""A forward that prints values or sizes of its batch, or writes files, is not split: it runs on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import OF_ROWS, Facts
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward, is_argument, reads

_WRITES = ("open", "torch.save", "numpy.save", "matplotlib.pyplot.savefig", "torchvision.utils.save_image")
_SIZES = {"shape", "size", "numel", "len"}
_ALIKE = {"ndim", "dim", "device", "dtype"}  # the same of some rows and of all


def find(facts: Facts) -> Iterator[Finding]:
    """Find prints of values or sizes of the batch, and written files, in the ``forward`` of a module."""
    for call in facts.calls("print", *_WRITES):
        if not in_forward(facts, call):
            continue
        prints = facts.name(call.func) == "print"
        if prints and not _shows_values(facts, call) and (not _shows_sizes(facts, call) or _runs_whole(facts, call)):
            continue  # the same of a rank's rows, or found already by what it reads (DDP205)
        yield Finding(
            call,
            f"{brief(facts, call)} in a forward",
            "this module runs on whole batches, on every rank, and shows and writes what one process does",
            "Return the value, and show or write it outside of the model.",
        )


def _shows_values(facts: Facts, call: cst.Call) -> bool:
    return any(not _is_of(facts, name, _SIZES | _ALIKE) for name in _of_batch(facts, call)) or bool(
        [inner for inner in facts.tree.within(call, cst.Call) if inner is not call and reads(facts, inner)]
    )


def _shows_sizes(facts: Facts, call: cst.Call) -> bool:
    return any(_is_of(facts, name, _SIZES) for name in _of_batch(facts, call))


def _of_batch(facts: Facts, call: cst.Call) -> list[cst.Name]:
    """Names in what is printed that hold rows."""
    inner = [name for argument in call.args for name in facts.tree.within(argument, cst.Name)]
    return [name for name in inner if facts.kinds(name) & OF_ROWS or is_argument(facts, name)]


def _is_of(facts: Facts, name: cst.Name, names: set[str]) -> bool:
    """``x.shape``, ``x.size(0)``, ``len(x)``: what is shown of a batch has one of these names."""
    outer = facts.tree.parents.get(name)
    if isinstance(outer, cst.Attribute):
        return outer.attr.value in names
    call = facts.tree.parents.get(outer) if isinstance(outer, cst.Arg) else None
    return isinstance(call, cst.Call) and facts.name(call.func) in names


def _runs_whole(facts: Facts, call: cst.Call) -> bool:
    """The forward reads values elsewhere, so that it runs on whole batches anyway."""
    function = facts.tree.enclosing(call, cst.FunctionDef)
    return function is not None and any(reads(facts, inner) for inner in facts.tree.within(function, cst.Call))


RULE = Rule(
    "DDP207", "forward-prints", "A forward prints or writes files", find, (World.PLAIN, World.DDP_PATCH), training=False
)
