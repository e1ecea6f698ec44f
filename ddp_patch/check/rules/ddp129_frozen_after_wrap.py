"""DDP lists the parameters that need gradients when it is made. What is frozen later, it goes on waiting for."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..rule import Finding, Rule, World

_PASSING = {"list", "tuple", "set", "iter", "enumerate", "reversed", "sorted", "filter", "zip", "itertools.chain"}
_PARTS = {"parameters", "children", "modules", "values", "items", "get_submodule", "get_parameter"}


def find(facts: Facts) -> Iterator[Finding]:
    """Find ``p.requires_grad = ...`` and ``requires_grad_(...)`` of a module below the line that wraps it."""
    changes: list[tuple[cst.Assign | cst.Call, cst.BaseExpression]] = [
        (call, call.func.value) for call in facts.methods("requires_grad_") if isinstance(call.func, cst.Attribute)
    ]
    for node in facts.tree.all(cst.Assign):
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
            changes.append((node, target.value))
    for change, changed in changes:
        wraps = [wrap for owner in _owners(facts, changed, set()) for wrap in _wraps(facts, owner, change)]
        if wraps and all(facts.tree.order[wrap] < facts.tree.order[change] for wrap in wraps):
            yield Finding(
                change,
                f"{facts.code(change)} comes after DistributedDataParallel(...)",
                "DDP has listed the parameters already, and waits for gradients of those that no longer get any",
                "Write it before the module is wrapped.",
            )


def _owners(facts: Facts, node: cst.CSTNode, seen: set[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """Give the modules whose parameters these are: ``net`` for p of ``for p in net.head.parameters()``."""
    if node in seen:
        return
    seen.add(node)
    name = dotted(node)
    if name is not None:
        yield node
        for source in _sources(facts, name.partition(".")[0], node):
            yield from _owners(facts, source, seen)
    elif isinstance(node, cst.Call):
        passed = [argument.value for argument in node.args] if facts.name(node.func) in _PASSING else []
        if isinstance(node.func, cst.Attribute) and node.func.attr.value.removeprefix("named_") in _PARTS:
            passed = [node.func.value]
        for part in passed:
            yield from _owners(facts, part, seen)
    elif isinstance(node, (cst.Attribute, cst.Subscript)):
        yield from _owners(facts, node.value, seen)
    elif isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        yield from _owners(facts, node.for_in.iter, seen)
    elif isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _owners(facts, element.value, seen)
    elif isinstance(node, cst.BinaryOperation):
        yield from _owners(facts, node.left, seen)
        yield from _owners(facts, node.right, seen)


def _sources(facts: Facts, name: str, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Give what a variable is taken from: by the loop around the line, else by all of its assignments."""
    variable = facts.scopes.find(name, facts.scopes.of(node))
    values = variable.values if variable is not None and not variable.parameter else []
    for outer in facts.tree.ancestors(node):
        bound = outer.for_in if isinstance(outer, (cst.ListComp, cst.GeneratorExp)) else outer
        looped = [value.node for value in values if value.statement is bound and value.looped]
        if looped:
            yield from looped
            return
    yield from (value.node for value in values)


def _wraps(facts: Facts, owner: cst.CSTNode, change: cst.CSTNode) -> Iterator[cst.Call]:
    """Give the wraps of this module, or of one that it is part of, in the function of the change."""
    function = facts.tree.enclosing(change, cst.FunctionDef)
    chain = [owner]
    while isinstance(chain[-1], cst.Attribute):
        chain.append(chain[-1].value)
    names = {dotted(each) for each in chain}
    is_wrapped = any(Kind.DDP in facts.kinds(each) for each in chain)
    for wrap in facts.calls("torch.nn.parallel.DistributedDataParallel"):
        if facts.tree.enclosing(wrap, cst.FunctionDef) is not function or _are_apart(facts, wrap, change):
            continue
        assigned = facts.assigned(wrap)
        if names & {assigned, _wrapped(facts, wrap)} or (is_wrapped and assigned is None):
            yield wrap


def _wrapped(facts: Facts, wrap: cst.Call) -> str | None:
    module = facts.argument(wrap, "module", 0)
    while isinstance(module, cst.Call) and isinstance(module.func, cst.Attribute):  # net.to(device)
        module = module.func.value
    return dotted(module)


def _are_apart(facts: Facts, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """They stand in two branches of one test."""
    tests = [outer for outer in facts.tree.ancestors(one) if isinstance(outer, cst.If) and outer.orelse is not None]
    return any(facts.tree.inside(one, test.body) and facts.tree.inside(other, test.orelse) for test in tests)  # type: ignore[arg-type]  # it is there


RULE = Rule("DDP129", "frozen-after-wrap", "requires_grad changes after DDP was made", find, (World.DDP,))
