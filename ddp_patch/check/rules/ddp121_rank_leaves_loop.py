"""A rank that leaves or skips a step leaves the others waiting in the all-reduce of their backward."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows

# What reads a batch's values or size. Counters beside the batch (``i > 100``) are the same on all ranks.
_READS = re.compile(r"is_?(nan|inf|finite)|loss|\.(item|sum|any|all|size|numel)\(|len\(|\.shape", re.I)
# The last, shorter batch: a DistributedSampler gives all ranks as many rows, so that they all have it at once.
_SHORT = re.compile(r"^(len\(\w+\)|\w+\.(size\(0\)|size\(\)\[0\]|shape\[0\]))(!=|<)[\w.]*batch_?size$", re.I)
_LEAVES = ("sys.exit", "exit", "quit", "os._exit")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``if <value of the batch>: break``, ``continue`` or ``sys.exit()`` in a training loop."""
    for node in facts.tree.all(cst.If):
        loop = facts.batch_loop(node)
        if loop is None or not loop.trains or not _leaves(facts, node) or facts.on_some_ranks(node):
            continue
        test = facts.code(node.test)
        if _READS.search(test) and not _SHORT.search(test.replace(" ", "")) and is_of_rows(facts, node.test):
            yield Finding(
                node.test,
                f"if {brief(facts, node.test)}: leaves the step",
                "one rank leaves and the others wait for it in their backward",
                "Write dist.all_reduce(flag, op=dist.ReduceOp.MAX) of the condition, and let all leave together.",
            )


def _leaves(facts: Facts, node: cst.If) -> bool:
    for statement in node.body.body:
        simple = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
        for each in simple:
            if isinstance(each, (cst.Break, cst.Continue, cst.Return, cst.Raise)):
                return True
            if (
                isinstance(each, cst.Expr)
                and isinstance(each.value, cst.Call)
                and facts.name(each.value.func) in _LEAVES
            ):
                return True
    return False


RULE = Rule("DDP121", "rank-leaves-loop", "A training step is left on a value of one rank's rows", find)
