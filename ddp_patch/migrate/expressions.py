"""What an expression is to a rank, by torch's names for what mixes rows and what does not."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

from . import losses
from .bindings import Bindings
from .script import Function, Script, dotted, keyword, tail
from .values import (
    COLS,
    COUNT,
    IN_BATCH,
    PACKED,
    ROWS,
    SAME,
    TOKENS,
    Kind,
    Value,
    add,
    average,
    divide,
    join,
    multiply,
    other,
    total,
)  # fmt: skip

_PASSING = {
    *(
        "item",
        "detach",
        "detach_",
        "cpu",
        "cuda",
        "to",
        "float",
        "double",
        "half",
        "clone",
        "numpy",
        "contiguous",
        "tolist",
    ),
    *(
        "type",
        "astype",
        "squeeze",
        "requires_grad_",
        "type_as",
        "expand_as",
        "int",
        "round",
        "asnumpy",
        "copy",
        "retain_grad",
    ),
    *(
        "float",
        "int",
        "abs",
        "as_tensor",
        "tensor",
        "asarray",
        "array",
        "Variable",
        "enumerate",
        "tqdm",
        "reversed",
        "scale",
    ),
}
_ALIKE = {"dtype", "device", "is_cuda", "ndim", "requires_grad", "dim", "ndimension", "is_leaf", "type"}
_WHOLE = {"max", "min", "std", "var", "median", "norm", "all", "any", "quantile", "amax", "amin", "argmax", "unique"}
_LIBRARIES = {"torch", "np", "numpy", "F", "nn", "math", "torchvision", "functional", "einops", "random"}
_MAKING = {
    "randn",
    "rand",
    "randint",
    "full",
    "ones",
    "zeros",
    "empty",
    "normal",
    "uniform",
    "new_zeros",
    "new_ones",
    "arange",
}
_MAKING |= {"Tensor", "FloatTensor", "LongTensor", "random", "random_sample", "choice", "normal_", "fill_"}
_NO_LINE = {"exp", "log", "sqrt", "log2", "log10", "sigmoid", "tanh", "pow", "square"}
_PACKING = {"pack_padded_sequence", "pack_sequence", "masked_select"}
_SUMMING = (ast.BinOp, ast.UnaryOp, ast.Call)


class Expressions:
    """Works out the kind of expressions; Flow adds the statements."""

    def __init__(self, script: Script, bindings: Bindings, whole: Collection[ast.expr] = ()) -> None:
        self.script, self.bindings, self._whole = script, bindings, whole
        self._loops: list[ast.For] = []
        self._looked_up: dict[ast.expr, set[ast.expr]] = {}
        self.divided: dict[ast.AST, tuple[ast.expr, ast.For]] = {}  # sums over a loop's rows: by what, which loop
        self.kinds: dict[ast.AST, Value] = {}
        self.closures: dict[str, tuple[Function, dict[str, Value]]] = {}
        self.loader_loops: dict[ast.For, ast.expr] = {}
        self.globals: dict[str, Value] = {}
        self.returned: Value | None = None
        # What loaders call their batch size: a tensor of that many rows is dealt as the batch is.
        loaders = [call for call in script.calls() if tail(call) == "DataLoader"]
        self.sizes = {dotted(keyword(call, "batch_size", 1)) for call in loaders} - {""}

    def kind(self, node: ast.AST) -> Value:
        """Tell what an expression was found to be."""
        return self.kinds.get(node, SAME)

    def call_function(self, function: Function, values: dict[str, Value]) -> Value:
        """Run a function of the script; Flow does."""
        raise NotImplementedError

    def loader(self, node: ast.expr) -> ast.expr | None:
        """Find the loader that is iterated: a name, or the call that makes it."""
        if isinstance(node, ast.Call) and tail(node) in ("enumerate", "tqdm") and node.args:
            return self.loader(node.args[0])
        while isinstance(node, ast.Call) and tail(node) in (
            "enumerate",
            "tqdm",
            "iter",
            "list",
            "zip",
            "islice",
            "cycle",
        ):
            if not node.args:
                return None
            node = node.args[0]
        if isinstance(node, ast.Call):
            return node if tail(node) in ("DataLoader",) else None
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            named = node.value if isinstance(node, ast.Subscript) else node
            made = {tail(call) for call in self.bindings.origins(named)}
            if "DataLoader" in made:
                return node
            group = self.bindings.group(named)
            words = {dotted(named), *(self.bindings.names.get(group, ()) if group else ())}
            called = any(word.rsplit(".", 1)[-1].lower().endswith(("loader", "_dl")) for word in words)
            if called and not isinstance(node, ast.Subscript) and not made & {"dict", "list"}:
                return node
            for call in self.bindings.origins(named):
                if tail(call) in ("tqdm", "enumerate") and call.args:
                    return self.loader(call)
        return None

    def is_counted(self, node: ast.expr) -> bool:
        """Tell whether what is iterated yields (number, batch): ``pbar = enumerate(loader)``."""
        return any(tail(call) == "enumerate" for call in self.bindings.origins(node))

    def bind(self, target: ast.expr, value: Value, env: dict[str, Value]) -> None:
        """Assign a value to a target."""
        if isinstance(target, (ast.Tuple, ast.List)):
            items = (
                value.items
                if len(value.items) == len(target.elts)
                else (Value(value.kind, value.reason),) * len(target.elts)
            )
            for inner, item in zip(target.elts, items, strict=True):
                self.bind(inner, item, env)
            return
        if isinstance(target, ast.Starred):
            target = target.value
        name = dotted(target)
        if name:
            env[name] = value
            self.kinds[target] = value
        elif isinstance(target, ast.Subscript) and dotted(target.value) and value.of_rows:
            name = dotted(target.value)
            env[name] = join(env.get(name, SAME), value)

    def value(self, node: ast.expr | None, env: dict[str, Value]) -> Value:
        """Work out an expression."""
        if node is None:
            return SAME
        found = self._value(node, env)
        if found.kind is Kind.SAME and not found.items and found.over is None and isinstance(node, _SUMMING):
            found = self._summed(node)
        if found.of_rows or found.over is not None or node not in self.kinds:
            self.kinds[node] = found
        return found

    def _summed(self, node: ast.expr) -> Value:
        """Tell whether something that is alike everywhere is still a sum over all rows."""
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return SAME
        if isinstance(node, ast.Call) and tail(node) not in _PASSING:
            return SAME
        loops = (self.kind(child).over for child in ast.iter_child_nodes(node))
        return Value(Kind.SAME, over=next((loop for loop in loops if loop is not None), None))

    def note_division(self, node: ast.AST, sum_: Value, divisor: ast.expr) -> None:
        """Keep by what a sum over the rows of a loop is divided."""
        loop = sum_.over or (self._loops[-1] if self._loops and sum_.kind in (Kind.SUM, Kind.COUNT) else None)
        if loop is not None:
            self.divided[node] = divisor, loop

    def loader_calls(self, over: ast.expr) -> set[ast.expr]:
        """Find what makes the loader that is iterated, or the name by which it comes from another file."""
        named = over.value if isinstance(over, ast.Subscript) else over
        if isinstance(over, ast.Call):
            return {over}
        return {c for c in self.bindings.origins(named) if tail(c) == "DataLoader"} or self._foreign_loaders(named)

    def _foreign_loaders(self, named: ast.expr) -> set[ast.expr]:
        if named not in self._looked_up:
            self._looked_up[named] = set()  # what is asked for meanwhile is the same
            if self.loader(named) is not None:
                self._looked_up[named] = set(self.bindings.received(named))
        return self._looked_up[named]

    def is_whole(self, over: ast.expr | None) -> bool:
        """Tell whether every rank takes all rows of a loader."""
        return bool(self._whole) and over is not None and bool(calls := self.loader_calls(over)) and all(
            call in self._whole for call in calls
        )  # fmt: skip

    def _value(self, node: ast.expr, env: dict[str, Value]) -> Value:
        match node:
            case ast.Constant():
                return SAME
            case ast.Name():
                return env[node.id] if node.id in env else self.globals.get(node.id, SAME)
            case ast.Attribute():
                return self._attribute(node, env)
            case ast.Call():
                return self._call(node, env)
            case ast.Subscript():
                return self._subscript(node, env)
            case ast.BinOp():
                return self._operation(node, env)
            case ast.UnaryOp():
                return self.value(node.operand, env)
            case ast.Compare():
                return self._combined([node.left, *node.comparators], env)
            case ast.BoolOp():
                return self._combined(node.values, env)
            case ast.IfExp():
                self.value(node.test, env)
                return join(self.value(node.body, env), self.value(node.orelse, env))
            case ast.Tuple():
                items = tuple(self.value(e, env) for e in node.elts)
                return Value(_joined(items).kind, _joined(items).reason, items=items)
            case ast.List() | ast.Set():
                found = _joined([self.value(e, env) for e in node.elts])
                return Value(found.kind, found.reason, listed=bool(node.elts))
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self._comprehension(node, env)
            case ast.Dict():
                return _joined([self.value(v, env) for v in node.values])
            case ast.JoinedStr():
                for part in node.values:
                    self.value(part, env)
                return SAME
            case ast.FormattedValue():
                self.value(node.value, env)
                return SAME
            case ast.Starred() | ast.Await():
                return self.value(node.value, env)
            case ast.NamedExpr():
                found = self.value(node.value, env)
                self.bind(node.target, found, env)
                return found
            case ast.DictComp():
                return SAME
        return SAME

    def _attribute(self, node: ast.Attribute, env: dict[str, Value]) -> Value:
        name = dotted(node)
        if name in env:
            return env[name]
        inner = self.value(node.value, env)
        if node.attr in _ALIKE:
            return SAME
        if node.attr in ("T", "mT") and inner.kind is Kind.ROWS:
            return COLS if node.attr == "T" else inner
        return Value(inner.kind, inner.reason)

    def _subscript(self, node: ast.Subscript, env: dict[str, Value]) -> Value:
        shape = node.value
        sized = (isinstance(shape, ast.Attribute) and shape.attr == "shape") or (
            isinstance(shape, ast.Call) and tail(shape) == "size" and not shape.args
        )
        found = self.value(shape, env)
        self.value(node.slice, env) if not isinstance(node.slice, ast.Slice) else None
        if sized and found.kind is Kind.ROWS:
            return COUNT if _number(node.slice) == 0 else SAME
        index = _number(node.slice)
        if found.items and isinstance(index, int) and -len(found.items) <= index < len(found.items):
            return found.items[index]
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if isinstance(first, ast.Constant) and first.value is None and found.kind is Kind.ROWS:
            return COLS
        if found.kind is Kind.ROWS and _picks(first) and self.kind(first).kind is Kind.ROWS:
            return Value(Kind.ROWS, PACKED)
        return Value(found.kind, found.reason, listed=found.listed and isinstance(node.slice, ast.Slice))

    def _operation(self, node: ast.BinOp, env: dict[str, Value]) -> Value:
        a, b = self.value(node.left, env), self.value(node.right, env)
        match node.op:
            case ast.Add() | ast.Sub():
                zero = any(_number(side) == 0 for side in (node.left, node.right))
                return add(a, b, zero)
            case ast.Mult():
                return multiply(a, b)
            case ast.Div():
                self.note_division(node, a, node.right)
                return divide(a, b)
            case ast.MatMult():
                return _product(a, b)
            case ast.Mod() if isinstance(node.left, ast.Constant):
                return SAME
        found = join(a, b)
        return found if found.kind in (Kind.SAME, Kind.ROWS, Kind.COLS, Kind.OTHER) else other("is not linear")

    def _combined(self, nodes: list[ast.expr], env: dict[str, Value]) -> Value:
        found = _joined([self.value(n, env) for n in nodes])
        return found if found.kind in (Kind.SAME, Kind.ROWS, Kind.COLS) else other("decides by what a rank sees")

    def _comprehension(self, node: Any, env: dict[str, Value]) -> Value:
        inner = dict(env)
        listed = False
        for clause in node.generators:
            iterated = self.value(clause.iter, inner)
            listed = listed or iterated.listed
            self.bind(clause.target, Value(iterated.kind, iterated.reason), inner)
        found = self.value(node.elt, inner)
        return Value(found.kind, found.reason, listed=listed or found.kind not in (Kind.ROWS, Kind.COLS))

    # -- calls --

    def _call(self, node: ast.Call, env: dict[str, Value]) -> Value:
        values = [self.value(a, env) for a in node.args]
        named = {k.arg: self.value(k.value, env) for k in node.keywords}
        given = [*values, *named.values()]
        name = tail(node)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, env)
            if owner.of_rows:
                return self._method(node, name, owner, values)
        elif not isinstance(node.func, ast.Name):
            self.value(node.func, env)
        if name in ("print", "str", "repr", "format"):
            return SAME  # a text: what stands in it is looked at by itself
        if name == "next" and node.args and (over := self.loader(node.args[0])) is not None:
            return SAME if self.is_whole(over) else ROWS
        if name in _MAKING and self._is_of_a_batch(node, given):
            return ROWS
        if name in _PACKING and given and given[0].kind is Kind.ROWS:
            return Value(Kind.ROWS, PACKED)
        known = self._known(node, env, values, named)
        if known is not None:
            return known
        worst = _joined(given)
        if not worst.of_rows or worst.kind is Kind.OTHER:
            return worst if worst.kind is Kind.OTHER else SAME
        return self._library(node, name, values, worst)

    def _is_of_a_batch(self, node: ast.Call, given: list[Value]) -> bool:
        """Tell whether a tensor is made with a row for each of the batch: by its size, or by the loader's constant."""
        if any(value.kind is Kind.COUNT for value in given):
            return True
        inner = [e for a in node.args for e in (a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a])]
        return bool(self.sizes) and any(
            isinstance(e, (ast.Name, ast.Attribute)) and dotted(e) in self.sizes for e in inner
        )

    def _known(self, node: ast.Call, env: Any, values: list[Value], named: dict[Any, Value]) -> Value | None:
        """Calls of losses, of the script's functions and modules, and of an optimizer's closure."""
        name = tail(node)
        rows = any(v.of_rows for v in (*values, *named.values()))
        if name == "step" and node.args and isinstance(node.args[0], ast.Name) and node.args[0].id in self.closures:
            closure, seen = self.closures[node.args[0].id]
            self.call_function(closure, dict(seen))
            return SAME  # what the closure returns is reduced
        if name in losses.FUNCTIONS and rows:
            return _worst(values) or losses.of_call(node)
        for made in self.bindings.origins(node.func):
            if tail(made) in losses.CLASSES and rows:
                return _worst(values) or losses.of_call(made)
        if isinstance(node.func, ast.Call) and tail(node.func) in losses.CLASSES and rows:
            return _worst(values) or losses.of_call(node.func)
        function: Function | None = self.bindings.callee(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.bindings.classes:
            return SAME  # an object
        if function is None:
            owner = self.bindings.class_made(node.func)
            function = (
                self.bindings.method(owner, "forward") or self.bindings.method(owner, "__call__") if owner else None
            )
        if isinstance(node.func, ast.Name) and node.func.id in self.closures and function is None:
            function = self.closures[node.func.id][0]
        if function is None:
            return None
        arguments = self.bindings.arguments(node, function)
        inner = {p: self.kinds.get(a, SAME) for p, a in arguments.items()}
        return self.call_function(function, inner)

    def _method(self, node: ast.Call, name: str, owner: Value, values: list[Value]) -> Value:
        rows = owner.kind in (Kind.ROWS, Kind.COLS)
        if name in ("size", "shape"):
            return COUNT if values and _number(node.args[0]) == 0 else ROWS if not values else SAME
        if name in ("numel", "nelement"):
            return COUNT
        if name in ("backward", "update", "step", "append", "extend", "dim", "get_device"):
            return SAME
        if name in ("mean", "sum"):
            return self._reduced(node, name, owner, node.args)
        if name in ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_") and values:
            function = {"a": add, "s": add, "m": multiply, "d": divide}[name[0]]
            return function(owner, values[0])
        if not rows:
            return Value(owner.kind, owner.reason, owner.listed) if name not in _NO_LINE else other("is not linear")
        if name in ("t", "unsqueeze", "transpose", "permute", "view", "reshape") and owner.kind is Kind.ROWS:
            numbers = [_number(a) for a in node.args]
            turned = name == "t" or (name == "unsqueeze" and numbers == [0]) or (name == "transpose" and 0 in numbers)
            flat = name in ("view", "reshape") and numbers[:1] == [1]
            return COLS if turned or flat else owner
        if name in ("mm", "matmul") and values:
            return _product(owner, values[0])
        if name in _WHOLE and not (node.args or node.keywords):
            return other("looks at all rows of a batch")
        return join(owner, _joined([v for v in values if v.kind in (Kind.ROWS, Kind.COLS, Kind.OTHER)]))

    def _reduced(self, node: ast.Call, name: str, owner: Value, dims: list[ast.expr]) -> Value:
        given = keyword(node, "dim") or keyword(node, "axis") or (dims[0] if dims else None)
        whole = average(owner) if name == "mean" else total(owner)
        if given is None or owner.kind not in (Kind.ROWS, Kind.COLS):
            return whole
        numbers = [_number(e) for e in given.elts] if isinstance(given, (ast.Tuple, ast.List)) else [_number(given)]
        if 0 not in numbers:
            return owner
        return whole if name == "sum" else other("is a mean over the rows of a batch, kept apart by column")

    def _library(self, node: ast.Call, name: str, values: list[Value], worst: Value) -> Value:
        first = values[0] if values else worst
        if name == "len":
            return SAME if first.listed else COUNT
        if name in ("mean", "sum", "fsum", "average"):
            return self._reduced(node, "sum" if "sum" in name else "mean", first, node.args[1:])
        if name in ("mm", "matmul", "einsum") and len(values) == 2:
            return _product(*values)
        if name == "cdist" and len(values) == 2 and all(v.kind is Kind.ROWS for v in values[:2]):
            return other(IN_BATCH)
        if Kind.COLS in (kinds := {v.kind for v in values}) and Kind.ROWS in kinds:
            return other(IN_BATCH)
        if worst.kind not in (Kind.ROWS, Kind.COLS):
            if name in _PASSING or name in ("stack", "cat", "list", "tuple", "dict", "str", "print", "format"):
                return worst if name not in ("print", "str", "format") else SAME
            return (
                other(f"is made by {name}(), which is not linear") if name in _NO_LINE else self._unknown(node, worst)
            )
        if name == "dict":
            return SAME
        root = dotted(node.func).split(".")[0]
        return worst if root in _LIBRARIES or root == "self" else self._unknown(node, worst)

    def _unknown(self, node: ast.Call, worst: Value) -> Value:
        """Tell what a function gives that is not in this file: rows, unless its name says it sums up."""
        name = tail(node).lower()
        if self.bindings.origins(node.func) or worst.kind not in (Kind.ROWS, Kind.COLS):
            summing = any(
                word in "".join(map(tail, self.bindings.origins(node.func))).lower() for word in ("loss", "crit")
            )
        else:
            summing = any(word in name for word in ("loss", "crit", "acc", "score", "metric", "iou", "auc", "error"))
        if summing:
            return other(f"is worked out by {tail(node)}(), which is not in this file")
        return (
            worst
            if worst.kind in (Kind.ROWS, Kind.COLS)
            else other(f"is made by {tail(node)}(), which is not in this file")
        )


def _worst(values: list[Value]) -> Value | None:
    """Find what no loss makes a mean over samples of."""
    if any(v.reason == PACKED and v.kind is Kind.ROWS for v in values):
        return other(TOKENS)
    return next((v for v in values if v.kind is Kind.OTHER), None)


def _picks(index: ast.expr) -> bool:
    """Tell whether an index is a mask, so that nobody knows how many rows it leaves."""
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return True
    return isinstance(index, (ast.Compare, ast.BoolOp)) or "mask" in dotted(index).lower()


def _product(a: Value, b: Value) -> Value:
    kinds = {a.kind, b.kind}
    if Kind.COLS in kinds and Kind.ROWS in kinds:
        return other(IN_BATCH)
    return _joined([a, b])


def _joined(values: Any) -> Value:
    found = SAME
    for value in values:
        found = join(found, Value(value.kind, value.reason, value.listed))
    return found


def _number(node: ast.AST | None) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) else None
