"""One seed for all ranks: they draw the same dropout masks and the same augmentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import is_zero, string
from ..rule import Finding, Rule

_DRAWS = re.compile(
    r"dropout|^(?!\w*sampler$)random[a-z]|^randn|^rand$|^rand_like|^normal_?$|noise|augment|colorjitter", re.I
)
_AUGMENTS = re.compile(r"^(Random(Resized)?Crop|Random(Horizontal|Vertical)Flip|RandomRotation|ColorJitter)$")
_LAYERS = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d"}
_SEEDS = re.compile(r"(^|[._])(rand\w*|getrandbits|urandom|seed|time|time_ns|choice|token_\w+)$")


def find(facts: Facts) -> Iterator[Finding]:
    """Find the first ``torch.manual_seed`` of a file where no seed depends on the rank."""
    calls = facts.calls("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
    spawned = {facts.name(call.args[0].value) for call in facts.calls("torch.multiprocessing.spawn") if call.args}
    if spawned:  # what is seeded outside of them, the processes do not inherit
        calls = [call for call in calls if _function(facts, call) in spawned]
    if not calls or facts.elsewhere.seeds_by_rank or not _draws(facts) or any(_differs(facts, call) for call in calls):
        return
    yield Finding(
        calls[0],
        f"{facts.code(calls[0])} is the same on every rank",
        "all ranks draw the same dropout masks and augment their rows alike",
        "Write torch.manual_seed(seed + dist.get_rank()) behind DistributedDataParallel(model).",
    )


def _function(facts: Facts, call: cst.Call) -> str:
    function = facts.tree.enclosing(call, cst.FunctionDef)
    return function.name.value if function is not None else ""


def _differs(facts: Facts, call: cst.Call) -> bool:
    """The seed is of a rank, or one that every process draws for itself: ``args.seed = random.randint(1, 10000)``."""
    parts = [part for argument in call.args for part in facts.tree.within(argument, cst.Name, cst.Attribute, cst.Call)]
    values = [value for part in parts for value in _values(facts, part)]
    if any(Kind.RANK in facts.kinds(part) for part in parts):
        return True
    if any("rank" in facts.code(part).lower() for part in (*parts, *values)):
        return True
    drawn = [inner for part in (*parts, *values) for inner in facts.tree.within(part, cst.Call)]
    return any(_SEEDS.search(facts.name(each.func) or "") for each in drawn)


def _draws(facts: Facts) -> bool:
    """Something in the file draws for rows, or something in its program that this file says nothing about."""
    words = facts.elsewhere.words
    named = [name for name in facts.tree.all(cst.Name) if _DRAWS.search(name.value)]
    if any(map(_AUGMENTS.search, words)) or any(not _draws_nothing(facts, name) for name in named):
        return True
    return bool(words & _LAYERS) and not any("dropout" in name.value.lower() for name in named)


def _draws_nothing(facts: Facts, name: cst.Name) -> bool:
    """``dropout=0`` and what passes it on; ``weight.data.normal_()`` and ``nn.init.normal_()`` draw weights."""
    outer = facts.tree.parents.get(name)
    if isinstance(outer, cst.Attribute) and outer.attr is name:
        receiver = (dotted(outer.value) or "").split(".")
        if {"init", "weight", "bias"} & {*receiver}:
            return True
        return _is_zero(facts, outer, set())
    if isinstance(outer, cst.Arg) and outer.keyword is name:
        return _is_zero(facts, outer.value, set())
    if isinstance(outer, cst.Param):
        return outer.default is None or _is_zero(facts, outer.default, set())
    return _is_zero(facts, name, set())


def _is_zero(facts: Facts, node: cst.CSTNode, seen: set[str]) -> bool:
    """0, or a variable or option of the command line that is nothing else by default."""
    if is_zero(node):
        return True
    text = dotted(node)
    if text is None or text in seen:
        return False
    values = _values(facts, node) or _defaults(facts, text.rpartition(".")[2])
    return bool(values) and all(_is_zero(facts, value, {*seen, text}) for value in values)


def _values(facts: Facts, node: cst.CSTNode) -> list[cst.BaseExpression]:
    name = dotted(node)
    variable = facts.scopes.find(name, facts.scopes.of(node)) if name is not None else None
    return [value.node for value in variable.values] if variable is not None else []


def _defaults(facts: Facts, option: str) -> list[cst.BaseExpression]:
    """``parser.add_argument("--dropout", default=0.0)``."""
    found = []
    for call in facts.methods("add_argument"):
        flags = [(string(argument.value) or "").lstrip("-").replace("-", "_") for argument in call.args]
        default = facts.argument(call, "default")
        if option in flags and default is not None:
            found.append(default)
    return found


RULE = Rule("DDP118", "one-seed", "The seed is the same on every rank", find)
