"""A script that can only run distributed is left alone by ddp_patch, with one line that says so."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, dotted
from ..literals import string
from ..rule import Finding, Rule, World

_DOORS = (
    "torch.distributed.init_process_group",
    "torch.distributed.device_mesh.init_device_mesh",
    "accelerate.Accelerator",
    "transformers.TrainingArguments",
    "deepspeed.initialize",
    "deepspeed.init_distributed",
    "torch.distributed.rpc.init_rpc",
)
_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first door by which a script distributes itself, under no condition."""
    if facts.calls("torch.multiprocessing.spawn"):
        return
    doors: list[cst.CSTNode] = [*facts.calls(*_DOORS), *_required(facts)]
    for node in sorted(doors, key=facts.tree.order.__getitem__):
        if _is_reached(facts, node, set()):
            shown = f"{facts.code(node.func)}(...)" if isinstance(node, cst.Call) else facts.code(node)
            yield Finding(
                node,
                f"{shown} distributes this script by its own means",
                "ddp_patch stands aside here and changes nothing",
                "Leave it so, or take the script back to one process and write ddp_patch.enable() on top.",
            )
            return


def _is_reached(facts: Facts, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    """Nothing decides whether the line runs: no condition, no earlier return, here and where its function is called."""
    outer = list(facts.tree.ancestors(node))
    conditions = [
        each for each in outer if isinstance(each, (cst.If, cst.IfExp, cst.Try)) and not _is_guard(facts, each)
    ]
    function = facts.tree.enclosing(node, cst.FunctionDef)
    if function is None or function in seen:
        return not conditions
    inside = [each for each in conditions if facts.tree.inside(each, function)]
    returns = facts.tree.within(function.body, cst.Return)
    if inside or any(facts.tree.order[each] < facts.tree.order[node] for each in returns):
        return False
    calls = facts.calls(function.name.value)
    return any(_is_reached(facts, call, {*seen, function}) for call in calls)


def _is_guard(facts: Facts, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.If) and "__name__" in facts.code(node.test)


def _required(facts: Facts) -> list[cst.Subscript]:
    found = []
    for node in facts.tree.all(cst.Subscript):
        index = node.slice[0].slice if dotted(node.value) in ("os.environ", "environ") else None
        parent = facts.tree.parents.get(node)
        assigned = isinstance(parent, cst.AssignTarget)
        if isinstance(index, cst.Index) and string(index.value) in _VARIABLES and not assigned:
            found.append(node)
    return found


RULE = Rule(
    "DDP202",
    "stands-aside",
    "The script distributes itself, so ddp_patch leaves it alone",
    find,
    (World.DDP, World.MANAGED, World.DDP_PATCH),
    training=False,
)
