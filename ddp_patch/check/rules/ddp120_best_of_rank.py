"""``if accuracy > best`` on a rank's own accuracy is true on some ranks and false on others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ...source import Facts, dotted
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows, ranks_differ

_BEST = re.compile(
    r"(?<!n_)best(?!_size)|patience|lowest|highest|min_(val|loss)|max_acc|prev_|last_|threshold|early", re.I
)
_THRESHOLD = re.compile(r"\w*threshold\w*", re.I)
_OF_ROWS = re.compile(r"(conf|confidence|prob\w*|iou|nms|mask|pixel)_?threshold", re.I)  # decides about one row


def find(facts: Facts) -> Iterator[Finding]:
    """Find comparisons of a rank's loss or metric with the best one so far."""
    for comparison in facts.tree.all(cst.Comparison):
        test = facts.tree.parents.get(comparison)
        if not isinstance(test, (cst.If, cst.IfExp, cst.BooleanOperation, cst.Assign)):
            continue
        sides = [comparison.left, *(target.comparator for target in comparison.comparisons)]
        operators = [target.operator for target in comparison.comparisons]
        if not all(
            isinstance(each, (cst.GreaterThan, cst.LessThan, cst.GreaterThanEqual, cst.LessThanEqual))
            for each in operators
        ):
            continue
        best = [side for side in sides if _BEST.search(facts.code(side))]
        others = [side for side in sides if side not in best]
        if len(sides) != 2 or len(best) != 1 or _is_mask(facts, best[0], test):
            continue
        if is_of_rows(facts, others[0]) and ranks_differ(facts, test):
            yield Finding(
                comparison,
                f"{brief(facts, comparison)} compares a value of this rank's rows",
                "the ranks decide differently: about checkpoints, learning rates or when to stop",
                "Write dist.all_reduce of the value first, so that all compare the same.",
            )


def _is_mask(facts: Facts, best: cst.BaseExpression, test: cst.CSTNode) -> bool:
    """``pred = prob > threshold`` is worked out for each row, unless something branches on ``pred``."""
    text = facts.code(best)
    if _BEST.search(_THRESHOLD.sub("", text)):
        return False
    if _OF_ROWS.search(text):
        return True
    if not isinstance(test, cst.Assign):
        return False
    name = dotted(test.targets[0].target)
    branching: Sequence[cst.If | cst.IfExp | cst.While] = facts.tree.all(cst.If, cst.IfExp, cst.While)
    return not any(name in _tested(node.test) for node in branching)


def _tested(test: cst.BaseExpression) -> Iterator[str | None]:
    if isinstance(test, cst.BooleanOperation):
        yield from _tested(test.left)
        yield from _tested(test.right)
    elif isinstance(test, cst.UnaryOperation):
        yield from _tested(test.expression)
    elif dotted(test) is not None:
        yield dotted(test)


RULE = Rule("DDP120", "best-of-rank", "A decision is made on a value of one rank's rows", find)
