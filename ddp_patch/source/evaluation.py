"""Tell what kind of thing an expression is, by its parts and the kinds of the variables in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from . import kinds
from .kinds import OF_ROWS, SAME, Kind
from .names import dotted, qualified
from .scopes import Scope, Scopes, Value
from .tree import Tree, children

Kinds = frozenset[Kind]
_NONE: Kinds = frozenset()
_KEPT = {Kind.MODULE, Kind.DATA_PARALLEL, Kind.DDP, Kind.LOSS, Kind.LOADER, Kind.DATASET, Kind.OPTIMIZER, *OF_ROWS}
_PASSING = {"tqdm", "enumerate", "iter", "list", "reversed", "sorted", "islice", "trange", "prefetcher", "ProgressBar"}
_OF_NO_ROWS = {"device", "dtype", "is_cuda", "ndim", "requires_grad", "dim", "__class__", "__name__"}
_RANKS = re.compile(r"(^|_)RANK$|^SLURM_(PROCID|LOCALID)$")  # what launchers put into the environment


class Evaluation:
    """Answers ``kinds(expression)`` by what is known of the variables so far."""

    def __init__(self, tree: Tree, scopes: Scopes, imported: Mapping[str, str]) -> None:
        self._tree, self._scopes, self._imported = tree, scopes, imported
        self._returned: dict[cst.FunctionDef, list[cst.BaseExpression]] = {}
        for node in tree.all(cst.Return, cst.Yield):
            function = tree.enclosing(node, cst.FunctionDef)
            value = node.value if isinstance(node, (cst.Return, cst.Yield)) else None
            if function is not None and isinstance(value, cst.BaseExpression):
                self._returned.setdefault(function, []).append(value)
        self._memo: dict[cst.CSTNode, Kinds] = {}
        self._open: set[cst.CSTNode] = set()
        self._bases: dict[str, Kinds] = {}
        self._ranks: set[str] = set()  # ``args.gpu``, which other functions are given with args

    def kinds(self, node: cst.CSTNode | None, scope: Scope | None = None) -> Kinds:
        """Tell what an expression is: all kinds that it may be, or none where nothing is known."""
        if node is None:
            return _NONE
        found = self._memo.get(node)
        if found is None:
            if node in self._open:
                return _NONE
            self._open.add(node)
            found = self._memo[node] = self._evaluate(node, scope or self._scopes.of(node))
            self._open.discard(node)
        return found

    def class_kinds(self, name: str) -> Kinds:
        """Tell what instances of a class of this file are, by its bases, or by its ``forward``."""
        if name not in self._bases:
            self._bases[name] = _NONE  # a class that is its own base, by a mistake
            node = self._scopes.classes[name]
            found: set[Kind] = set()
            for base in node.bases:
                full = qualified(base.value, self._imported) or ""
                found |= self.class_kinds(full) if full in self._scopes.classes else kinds.made_by(full)
                found |= {Kind.MODULE} if full.endswith(("Module", "PreTrainedModel")) else set()
                found |= {Kind.DATASET} if full.endswith("Dataset") else set()
            if (
                not found
                and node.bases
                and any(isinstance(item, cst.FunctionDef) and item.name.value == "forward" for item in node.body.body)
                and not any("Function" in (dotted(base.value) or "") for base in node.bases)
            ):
                found = {Kind.MODULE}
            if any("loss" in text.lower() for text in (name,)) and Kind.MODULE in found:
                found.add(Kind.LOSS)
            self._bases[name] = frozenset(found)
        return self._bases[name]

    def _value_kinds(self, value: Value) -> Kinds:
        if isinstance(value.statement, cst.AugAssign):
            return self.kinds(value.node, value.scope) & {*OF_ROWS, Kind.REDUCED}
        return self._item(value.node, value.scope, value.unpacked, value.looped)

    def _item(self, node: cst.BaseExpression, scope: Scope, path: tuple[int, ...], looped: bool) -> Kinds:
        if isinstance(node, cst.Call) and node.args:
            name = (dotted(node.func) or "").rpartition(".")[2]
            if looped and name == "enumerate":
                if path[:1] == (0,):
                    return _NONE
                return self._item(node.args[0].value, scope, path[1:], looped)
            if looped and name == "zip" and path and path[0] < len(node.args):
                return self._item(node.args[path[0]].value, scope, path[1:], looped)
            if name == "prepare" and len(node.args) > 1 and path and path[0] < len(node.args):
                return self.kinds(node.args[path[0]].value, scope)
            if name in self._scopes.functions and path and not looped and not self._is_imported(node.func):
                return self._results(name, path)
        if isinstance(node, (cst.Tuple, cst.List)) and path and not looped:
            if path[0] < len(node.elements):
                return self._item(node.elements[path[0]].value, scope, path[1:], looped)
            return _NONE
        return self._each(self.kinds(node, scope)) if looped else self.kinds(node, scope)

    def _each(self, of: Kinds) -> Kinds:
        return frozenset({Kind.BATCH}) if of & {Kind.LOADER, Kind.LOADER_ITERATOR} else of

    def _results(self, name: str, path: tuple[int, ...]) -> Kinds:
        found: set[Kind] = set()
        for function in self._scopes.functions.get(name, ()):
            if function in self._open:
                continue  # it gives back what a call of itself does
            self._open.add(function)
            for value in self._returned.get(function, ()):
                found |= self._item(value, self._scopes.inside(function), path, looped=False)
            self._open.discard(function)
        return frozenset(found)

    def _is_imported(self, function: cst.BaseExpression) -> bool:
        """``torch.split`` is no call of the file's own ``split``."""
        return (dotted(function) or "").partition(".")[0] in self._imported

    def _evaluate(self, node: cst.CSTNode, scope: Scope) -> Kinds:
        if isinstance(node, cst.Call):
            return self._call(node, scope)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return self._path(node, scope)
        if isinstance(node, cst.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, (cst.Integer, cst.Float, cst.SimpleString, cst.Lambda)):
            return _NONE
        parts = [self.kinds(child, scope) for child in children(node)]
        union = frozenset().union(*parts)
        if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation)):
            return self._rows(union) | (union & {Kind.LOSS_VALUE, Kind.RANK})
        if isinstance(node, (cst.Comparison, cst.BaseFormattedStringContent, cst.FormattedString)):
            return self._rows(union)
        return union

    def _rows(self, of: Kinds) -> Kinds:
        return (frozenset({Kind.LOCAL}) if of & OF_ROWS else _NONE) | (of & {Kind.REDUCED})

    def _path(self, node: cst.Name | cst.Attribute, scope: Scope) -> Kinds:
        name = dotted(node)
        if name is not None:
            if name.partition(".")[0] in self._imported:
                return kinds.named(name) & {Kind.LOADER, Kind.RANK} if "." not in name else _NONE
            variable = self._scopes.find(name, scope)
            if variable is not None:
                reduced = {Kind.REDUCED} if kinds.REDUCED_NAMES.search(name) else _NONE
                return frozenset(variable.kinds) | reduced
            if name in self._ranks and not name.startswith("self."):
                return frozenset({Kind.RANK})
        if isinstance(node, cst.Attribute):
            base, attribute = self.kinds(node.value, scope), node.attr.value
            if attribute == "module" and base & {Kind.DATA_PARALLEL, Kind.DDP, Kind.MODULE}:
                return (base - {Kind.DATA_PARALLEL, Kind.DDP}) | {Kind.MODULE}
            if attribute == "dataset" and Kind.LOADER in base:
                return frozenset({Kind.DATASET})
            if attribute == "sampler" and Kind.LOADER in base:
                return frozenset({Kind.SAMPLER})
            if base & OF_ROWS and attribute not in _OF_NO_ROWS:
                return self._rows(base) | (base & {Kind.BATCH, Kind.OUTPUT} if attribute == "data" else _NONE)
        return kinds.named(name) if name is not None else _NONE

    def _subscript(self, node: cst.Subscript, scope: Scope) -> Kinds:
        text = [_text(literal) for literal in self._tree.within(node, cst.SimpleString)]
        if dotted(node.value) in ("os.environ", "environ"):
            return frozenset({Kind.RANK}) if any(map(_RANKS.search, text)) else _NONE
        base = self.kinds(node.value, scope)
        if Kind.CHECKPOINT in base:
            return base | ({Kind.STATE_DICT} if any("state" in word or "model" in word for word in text) else _NONE)
        return base & {*_KEPT, Kind.STATE_DICT, Kind.RANK}

    def _call(self, node: cst.Call, scope: Scope) -> Kinds:
        name = qualified(node.func, self._imported) or ""
        last = node.func.attr.value if isinstance(node.func, cst.Attribute) else name.rpartition(".")[2]
        made = kinds.made_by(name)
        if made:
            return made
        arguments = [self.kinds(argument.value, scope) for argument in node.args]
        union = frozenset().union(*arguments)
        if kinds.reduces(name or last) and not self._is_picked(node, scope):
            return frozenset({Kind.REDUCED})
        if last in self._scopes.classes:
            return self.class_kinds(last)
        if last in self._scopes.functions and (name == last or name == f"self.{last}"):
            returned = frozenset().union(
                *(
                    self.kinds(value, self._scopes.inside(function))
                    for function in self._scopes.functions[last]
                    for value in self._returned.get(function, ())
                )
            )
            return returned
        if name in ("torch.compile", "torch.nn.SyncBatchNorm.convert_sync_batchnorm") or last in (
            "prepare",
            "prepare_model",
        ):
            return union & _KEPT
        if name in ("len", "id", "isinstance", "type", "hasattr", "print"):
            return self._rows(union) if name == "len" else _NONE
        if last in _PASSING or name in ("next", "itertools.cycle", "torch.autograd.Variable"):
            if name == "iter" and Kind.LOADER in union:
                return frozenset({Kind.LOADER_ITERATOR})
            return self._each(union) if name == "next" else union
        if last in ("getenv", "get") and node.args and _RANKS.search(_text(node.args[0].value)):
            return frozenset({Kind.RANK})
        return self._method(node, last, union, scope)

    def _is_picked(self, call: cst.Call, scope: Scope) -> bool:
        """``x.gather(1, index)`` picks from a tensor: ``accelerator.gather(x)`` takes no dimension."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "gather":
            return False
        keywords = {argument.keyword.value for argument in call.args if argument.keyword is not None}
        first = call.args[0].value if call.args else None
        number = first.expression if isinstance(first, cst.UnaryOperation) else first
        is_number = len(call.args) > 1 and isinstance(number, cst.Integer)
        return bool(keywords & {"dim", "index"}) or is_number or bool(self.kinds(call.func.value, scope) & OF_ROWS)

    def _method(self, node: cst.Call, last: str, arguments: Kinds, scope: Scope) -> Kinds:
        receiver = self.kinds(node.func.value, scope) if isinstance(node.func, cst.Attribute) else _NONE
        called = self.kinds(node.func, scope)
        if Kind.LOSS in called:
            return frozenset({Kind.LOSS_VALUE})
        if Kind.MODULE in called:
            return frozenset({Kind.OUTPUT})
        if last in SAME:
            return receiver
        if last == "next" and Kind.LOADER_ITERATOR in receiver:
            return frozenset({Kind.BATCH})
        if last == "state_dict":
            return frozenset({Kind.STATE_DICT})
        if Kind.MODULE in receiver and last in ("generate", "forward", "encode", "decode", "predict"):
            return frozenset({Kind.OUTPUT})
        if Kind.RANK in arguments and last in ("int", "str"):
            return frozenset({Kind.RANK})
        if last == "size" and receiver & OF_ROWS and node.args and not _is_zero(node.args[0].value):
            return _NONE
        if last in ("mean", "sum") and Kind.LOSS_VALUE in receiver:
            return receiver
        return self._rows(receiver | arguments)


def _text(node: cst.BaseExpression) -> str:
    return node.value.strip("'\"") if isinstance(node, cst.SimpleString) else ""


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) and node.value == "0"
