"""A loss that compares the rows of a batch with each other sees only this rank's."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import brief, number
from ..rule import Finding, Rule

_SHAPES = ("view", "reshape")
_PRODUCTS = {"torch.mm", "torch.matmul", "torch.einsum", "torch.cdist"}
_PLACES = re.compile(r"contrast|sup_?con|triplet|nt_?xent|info_?nce|simclr|clip_loss|hard|pdist|npair", re.I)
_LIBRARY = re.compile(r"pytorch_metric_learning\.(losses|miners|distances)\.[A-Z]")


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``z @ z.T`` and its like, of what a model made of a batch or in a function named after such a loss."""
    for node in facts.tree.all(cst.BinaryOperation):
        if isinstance(node.operator, cst.MatrixMultiply) and _square(facts, node.left, node.right):
            yield _finding(facts, node)
    for call in facts.tree.all(cst.Call):
        sides = _sides(facts, call)
        if _LIBRARY.match(facts.name(call.func) or "") or (sides is not None and _square(facts, *sides)):
            yield _finding(facts, call)


def _sides(facts: Facts, call: cst.Call) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Give the two factors of ``torch.mm(x, y)`` and ``x.mm(y)``."""
    arguments = [argument.value for argument in call.args]
    if facts.name(call.func) in _PRODUCTS and len(arguments) > 1:
        return arguments[0], arguments[1]
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("mm", "matmul") and len(arguments) == 1:
        return call.func.value, arguments[0]
    return None


def _square(facts: Facts, left: cst.BaseExpression, right: cst.BaseExpression) -> bool:
    turned = _turned(right)
    if turned is None:
        return facts.name(left) is not None and facts.code(left) == facts.code(right) and _named_so(facts, left)
    same = facts.code(left) == facts.code(turned)
    outputs = Kind.OUTPUT in facts.kinds(left) and Kind.OUTPUT in facts.kinds(turned)
    if _is_gram(facts, left) or Kind.REDUCED in facts.kinds(left) | facts.kinds(turned):
        return False  # of one picture, or of the rows of all ranks
    return _named_so(facts, left) or (outputs and same and not _in_module(facts, left))


def _is_gram(facts: Facts, node: cst.BaseExpression) -> bool:
    """``x.view(c, h * w)`` has channels for rows: x @ x.T is a Gram matrix of one picture."""
    name = facts.name(node)
    variable = facts.scopes.find(name, facts.scopes.of(node)) if name is not None else None
    values = variable.values if variable is not None else []
    calls = [call for value in values for call in facts.tree.within(value.node, cst.Call)]
    shapes = [call.args for call in calls if isinstance(call.func, cst.Attribute) and call.func.attr.value in _SHAPES]
    return any(len(shape) == 2 and number(shape[1].value) is None for shape in shapes)


def _turned(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Give x of ``x.t()``, ``x.T`` and ``x.transpose(0, 1)``."""
    if isinstance(node, cst.Attribute) and node.attr.value in ("T", "mT"):
        return node.value
    if isinstance(node, cst.Call) and dotted(node.func) == "torch.t" and node.args:
        return node.args[0].value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        places = [number(argument.value) for argument in node.args]
        if (node.func.attr.value == "t" and not places) or (
            node.func.attr.value == "transpose" and sorted(map(str, places)) == ["0", "1"]
        ):
            return node.func.value
    return None


def _named_so(facts: Facts, node: cst.CSTNode) -> bool:
    outer = [each for each in facts.tree.ancestors(node) if isinstance(each, (cst.FunctionDef, cst.ClassDef))]
    return any(_PLACES.search(each.name.value) for each in outer)


def _in_module(facts: Facts, node: cst.CSTNode) -> bool:
    outer = facts.tree.enclosing(node, cst.ClassDef)
    return outer is not None and Kind.MODULE in facts.inference.class_kinds(outer.name.value)


def _finding(facts: Facts, node: cst.CSTNode) -> Finding:
    return Finding(
        node,
        f"{brief(facts, node)} compares the rows of a batch with each other",
        "it compares this rank's rows only: fewer negatives, so another loss",
        "Write torch.cat(torch.distributed.nn.all_gather(z)) for what it compares with.",
    )


RULE = Rule("DDP116", "in-batch-loss", "A loss compares the rows of a batch with each other", find, training=False)
