"""``if accuracy > best`` on a rank's own accuracy is true on some ranks and false on others."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts
from ..literals import brief
from ..rule import Finding, Rule
from ..sharding import is_of_rows, ranks_differ

_BEST = re.compile(
    r"(?<!n_)best(?!_size)|patience|lowest|highest|min_(val|loss)|max_acc|prev_|last_|threshold|early", re.I
)


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
        if len(sides) == 2 and len(best) == 1 and is_of_rows(facts, others[0]) and ranks_differ(facts, test):
            yield Finding(
                comparison,
                f"{brief(facts, comparison)} compares a value of this rank's rows",
                "the ranks decide differently: about checkpoints, learning rates or when to stop",
                "Write dist.all_reduce of the value first, so that all compare the same.",
            )


RULE = Rule("DDP120", "best-of-rank", "A decision is made on a value of one rank's rows", find)
