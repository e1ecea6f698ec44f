"""Parameters that take no part in a forward: DDP waits for their gradients, and fails in the next one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ...source import Facts, Kind, dotted
from ..literals import is_true, string
from ..rule import Finding, Rule

_FETCHES = ("getattr", "__getattr__", "__getattribute__", "get_submodule", "get_parameter")
_ALL = ("children", "named_children", "modules", "named_modules", "_modules", "parameters", "named_parameters")
_PLACES = re.compile(r"%[-\d.]*[a-z]|\{[^{}]*\}")  # of what is put into a text by % and format
_PREPARES = re.compile(r"init|reset|freez|weight|load|train$|cuda$|to$")  # goes over all layers and runs none
_TRAINED = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Conv\w+|BatchNorm\w+|LayerNorm|GroupNorm|Embedding\w*|LSTM\w*|GRU\w*|RNN\w*|PReLU|Parameter|MultiheadAttention|Transformer\w*)$"
)


def find(facts: Facts) -> Iterator[Finding]:
    """Find layers that a module's ``__init__`` makes and nothing in the file ever uses."""
    if any(
        is_true(facts.argument(call, "find_unused_parameters"))
        for call in facts.calls("torch.nn.parallel.DistributedDataParallel")
    ):
        return
    if "find_unused_parameters" in facts.elsewhere.words:
        return
    used = _used(facts) | facts.elsewhere.words
    for node in facts.tree.all(cst.Assign):
        target, value = node.targets[0].target, node.value
        name = dotted(target) or ""
        if not name.startswith("self.") or name.count(".") != 1 or not isinstance(value, cst.Call):
            continue
        owner = facts.tree.enclosing(node, cst.ClassDef)
        if owner is None or Kind.MODULE not in facts.inference.class_kinds(owner.name.value) or not _is_plain(owner):
            continue
        layer = name.removeprefix("self.")
        if _TRAINED.match(facts.name(value.func) or "") and layer not in used and not _is_fetched(facts, layer, owner):
            yield Finding(
                node,
                f"{name} = {facts.code(value.func)}(...) is used nowhere",
                "its parameters get no gradient, which DDP waits for: the next forward raises",
                "Take it out, or write DistributedDataParallel(model, find_unused_parameters=True).",
            )


def _is_plain(owner: cst.ClassDef) -> bool:
    """Its forward is in this file, so what it uses can be seen."""
    return any(isinstance(item, cst.FunctionDef) and item.name.value == "forward" for item in owner.body.body)


def _used(facts: Facts) -> set[str]:
    """Name every attribute that is read, and every string, which getattr could be given."""
    assigned = {target.target for node in facts.tree.all(cst.Assign) for target in node.targets}
    read = {node.attr.value for node in facts.tree.all(cst.Attribute) if node not in assigned}
    return read | {node.value.strip("'\"") for node in facts.tree.all(cst.SimpleString)}


def _is_fetched(facts: Facts, layer: str, owner: cst.ClassDef) -> bool:
    """The class takes its layers by names that it puts together, or all of them."""
    for node in facts.tree.within(owner, cst.Attribute):
        method = facts.tree.enclosing(node, cst.FunctionDef)
        goes_over = node.attr.value in _ALL and dotted(node.value) == "self"
        if goes_over and method is not None and not _PREPARES.search(method.name.value):
            return True
    asked = [call.args[1].value for call in facts.calls("getattr") if len(call.args) > 1 and _is_of(facts, call, owner)]
    asked += [call.args[0].value for call in facts.methods(*_FETCHES) if call.args and _is_of(facts, call, owner)]
    return any(re.fullmatch(_pattern(name), layer) for name in asked)


def _is_of(facts: Facts, call: cst.Call, owner: cst.ClassDef) -> bool:
    """``getattr(self, ...)`` in the class, ``getattr(model, ...)`` anywhere."""
    taken = call.func.value if isinstance(call.func, cst.Attribute) else call.args[0].value
    return facts.tree.inside(call, owner) if dotted(taken) == "self" else Kind.MODULE in facts.kinds(taken)


def _pattern(name: cst.BaseExpression) -> str:
    """Write what names an expression may give: ``f"conv{i}"``, ``"conv%d" % i``, ``"conv" + str(i)``."""
    if isinstance(name, cst.FormattedString):
        parts = [re.escape(part.value) if isinstance(part, cst.FormattedStringText) else ".*" for part in name.parts]
        return "".join(parts)
    text = string(name)
    if text is not None:
        return re.escape(text)
    if isinstance(name, cst.BinaryOperation) and isinstance(name.operator, cst.Add):
        return _pattern(name.left) + _pattern(name.right)
    if isinstance(name, cst.BinaryOperation) and (text := string(name.left)) is not None:
        return ".*".join(map(re.escape, _PLACES.split(text)))
    if isinstance(name, cst.Call) and isinstance(name.func, cst.Attribute) and (text := string(name.func.value)):
        return ".*".join(map(re.escape, _PLACES.split(text)))
    return ".*"


RULE = Rule("DDP128", "unused-parameters", "A layer is made and never used", find, of_parts=True)
