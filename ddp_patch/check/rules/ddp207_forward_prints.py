"""A forward that prints sizes shows rank 0's; one that prints values or writes files runs on whole batches."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import OF_ROWS, Facts
from ..literals import brief
from ..rule import Finding, Rule, World
from .ddp205_forward_reads_values import in_forward, is_argument, reads

_WRITES = ("open", "torch.save", "numpy.save", "matplotlib.pyplot.savefig", "torchvision.utils.save_image")
_SIZES = {"shape", "size", "numel", "len", "ndim", "dim", "device", "dtype"}
_WHOLE = "this module runs on whole batches, on every rank"


def find(facts: Facts) -> Iterator[Finding]:
    """Find prints of values or sizes of the batch, and written files, in the ``forward`` of a module."""
    for call in facts.calls("print", *_WRITES):
        if not in_forward(facts, call):
            continue
        prints = facts.name(call.func) == "print"
        if prints and not _shows_values(facts, call) and (not _shows_sizes(facts, call) or _runs_whole(facts, call)):
            continue  # the same on one process
        of_rows = prints and not _shows_values(facts, call)
        yield Finding(
            call,
            f"{brief(facts, call)} in a forward",
            "the size that it shows is of rank 0's rows" if of_rows else _WHOLE,
            "Return the value, and show or write it outside of the model.",
        )


def _shows_values(facts: Facts, call: cst.Call) -> bool:
    return any(not _is_size(facts, name) for name in _of_batch(facts, call)) or bool(
        [inner for inner in facts.tree.within(call, cst.Call) if inner is not call and reads(facts, inner)]
    )


def _shows_sizes(facts: Facts, call: cst.Call) -> bool:
    return any(_is_size(facts, name) for name in _of_batch(facts, call))


def _of_batch(facts: Facts, call: cst.Call) -> list[cst.Name]:
    """Names in what is printed that hold rows."""
    inner = [name for argument in call.args for name in facts.tree.within(argument, cst.Name)]
    return [name for name in inner if facts.kinds(name) & OF_ROWS or is_argument(facts, name)]


def _is_size(facts: Facts, name: cst.Name) -> bool:
    """``x.shape``, ``x.size(0)``, ``len(x)``."""
    outer = facts.tree.parents.get(name)
    if isinstance(outer, cst.Attribute):
        return outer.attr.value in _SIZES
    call = facts.tree.parents.get(outer) if isinstance(outer, cst.Arg) else None
    return isinstance(call, cst.Call) and facts.name(call.func) in _SIZES


def _runs_whole(facts: Facts, call: cst.Call) -> bool:
    """The forward reads values elsewhere, so that its sizes are those of whole batches."""
    function = facts.tree.enclosing(call, cst.FunctionDef)
    return function is not None and any(reads(facts, inner) for inner in facts.tree.within(function, cst.Call))


RULE = Rule(
    "DDP207", "forward-prints", "A forward prints or writes files", find, (World.PLAIN, World.DDP_PATCH), training=False
)
