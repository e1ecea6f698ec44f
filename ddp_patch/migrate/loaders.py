"""The loaders of a script: what each one feeds, and whether ranks share its rows."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from .bindings import Bindings
from .flow import Flow
from .gathering import left_over, unshared
from .script import Script
from .tree import dotted, keyword, tail

_DECIDES = (ast.Break, ast.Return)
_KNOWN = {
    *("iter", "next", "enumerate", "tqdm", "trange", "len", "zip", "islice", "list", "cycle", "prepare", "print"),
    *("isinstance", "chain", "range", "type", "id", "hasattr", "getattr", "append", "dict", "tuple", "reversed"),
}
_QUIET = {
    *("print", "write", "writerow", "info", "debug", "warning", "log", "set_postfix", "set_description", "append"),
    *("extend", "update", "to", "cuda", "add_scalar", "add_image", "add_images", "add_figure", "save_image", "savefig"),
    *("imshow", "show", "imsave", "imwrite", "save", "add_", "mul_", "div_", "sub_", "copy_", "fill_", "eval", "train"),
    *("set_title", "plot", "hist", "scatter", "add_text", "pprint", "backward", "step", "zero_grad", "detach_"),
}


@dataclass(eq=False)
class Loader:
    """One construction of a DataLoader."""

    node: ast.expr  # the call, or the name that it has from a function of another file
    call: ast.Call
    name: str
    loops: list[ast.For]
    trains: bool
    pulled: bool  # by next()
    stream: bool  # of an iterable dataset
    hides: str  # the dictionary that may hold what matters here
    sizes: list[ast.expr]  # batch sizes in dictionaries that the call takes by **
    handed: list[tuple[str, ast.Call]]  # to functions of other files
    whole: str = ""  # why every rank takes all of it

    @property
    def foreign(self) -> bool:
        """It is made by a function of another file."""
        return self.node is not self.call

    @property
    def drop_last(self) -> ast.expr | None:
        """What the loader does with a last batch that is not full."""
        given = keyword(self.call, "drop_last", 8) if not self.foreign else None
        return None if isinstance(given, ast.Constant) and not given.value else given

    @property
    def pads(self) -> bool:
        """Some rows may be taken twice, so that all ranks have as many."""
        return self.trains and self.drop_last is None


def find(script: Script, bindings: Bindings, flow: Flow, trains: Callable[[ast.AST], bool]) -> dict[ast.expr, Loader]:
    """List the loaders, with the loops over them."""
    found: dict[ast.expr, Loader] = {}
    for over in flow.loader_loops.values():
        for node in sorted(flow.loader_calls(over), key=lambda n: (n.lineno, n.col_offset)):
            statement = script.statement(node)
            if not isinstance(node, ast.Call) and isinstance(statement, ast.Assign) and node not in found:
                loops = [loop for loop, o in flow.loader_loops.items() if node in flow.loader_calls(o)]
                made = next(n for n in ast.walk(statement.value) if isinstance(n, ast.Call))
                learns = any(trains(loop) for loop in loops)
                handed = [(tail(c), c) for c in script.calls() if _is_foreign(bindings, c) and _gets(flow, c, node)]
                found[node] = Loader(node, made, dotted(node), loops, learns, False, False, "", [], handed)
    for call in script.calls():
        if tail(call) == "DataLoader":
            loops = [loop for loop, over in flow.loader_loops.items() if call in flow.loader_calls(over)]
            pulls = [
                c
                for c in script.calls()
                if tail(c) in ("iter", "next", "cycle") and c.args and call in bindings.origins(c.args[0])
            ]
            target = next((n for n in script.above(call) if isinstance(n, ast.Assign)), None)
            name = dotted(target.targets[0]).split(".")[-1] if target is not None else ""
            learns = any(_in_training(script, trains, c) for c in pulls) or any(trains(loop) for loop in loops)
            if not loops and not pulls:
                learns = not any(word in name.lower() for word in ("test", "val", "dev", "eval"))
            stream = _is_stream(bindings, keyword(call, "dataset", 0))
            hides, sizes = _starred(script, call)
            handed = [(tail(c), c) for c in script.calls() if _is_foreign(bindings, c) and _gets(flow, c, call)]
            found[call] = Loader(call, call, name, loops, learns, bool(pulls), stream, hides, sizes, handed)
    return found


def _is_foreign(bindings: Bindings, call: ast.Call) -> bool:
    """Tell whether a call may run a function of another file."""
    name = tail(call)
    return name not in _KNOWN and name not in bindings.classes and bindings.callee(call) is None


def _gets(flow: Flow, call: ast.Call, loader: ast.expr) -> bool:
    given = [*call.args, *(k.value for k in call.keywords)]
    return any(isinstance(g, (ast.Name, ast.Attribute)) and loader in flow.loader_calls(g) for g in given)


def _is_stream(bindings: Bindings, dataset: ast.expr | None) -> bool:
    if dataset is None:
        return False
    made = bindings.class_made(dataset)
    if isinstance(dataset, ast.Call) and isinstance(dataset.func, ast.Name):
        made = bindings.classes.get(dataset.func.id)
    return made is not None and any(tail(base) == "IterableDataset" for base in made.bases)


def _starred(script: Script, call: ast.Call) -> tuple[str, list[ast.expr]]:
    """Look into the dictionaries that a call takes by ``**``: which one hides something, and the batch sizes."""
    hides, sizes = "", []
    for given in call.keywords:
        if given.arg is not None:
            continue
        name = dotted(given.value)
        values = [n.value for n in script.all(ast.Assign) if name and name in [dotted(t) for t in n.targets]]
        keys: set[str] = set()
        for inner in (n for value in values for n in _either(value)):
            if isinstance(inner, ast.Call):
                keys |= {k.arg or "*" for k in inner.keywords} if tail(inner) == "dict" else {"*"}
            if isinstance(inner, ast.Dict):
                keys |= {str(k.value) if isinstance(k, ast.Constant) else "*" for k in inner.keys}
        updated = any(
            tail(c) in ("update", "setdefault") and dotted(getattr(c.func, "value", None)) == name
            for c in script.calls()
        )
        if updated or not keys or keys & {"*", "shuffle", "sampler", "batch_sampler"}:
            hides = hides or script.code(given.value)
        sizes += [size for value in values for size in _named(value, "batch_size")]
    return hides, sizes


def _either(value: ast.expr) -> list[ast.expr]:
    return [*_either(value.body), *_either(value.orelse)] if isinstance(value, ast.IfExp) else [value]


def own_sampler(script: Script, call: ast.Call) -> ast.expr | None:
    """Find the sampler that a loader is given, unless that is None."""
    given = keyword(call, "sampler")
    if given is None or (isinstance(given, ast.Constant) and given.value is None):
        return None
    name = dotted(given)
    bound = [n.value for n in script.all(ast.Assign) if name and name in [dotted(t) for t in n.targets]]
    return None if bound and all(isinstance(v, ast.Constant) and v.value is None for v in bound) else given


def _named(value: ast.expr, name: str) -> list[ast.expr]:
    """Find the values that a dictionary's literal gives to a name."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name]
    return [k.value for k in value.keywords if k.arg == name] if isinstance(value, ast.Call) else []


def _in_training(script: Script, trains: Callable[[ast.AST], bool], node: ast.AST) -> bool:
    function = script.function(node)
    return trains(function if function is not None else script.tree)


def take_whole(script: Script, bindings: Bindings, flow: Flow, loaders: dict[ast.expr, Loader]) -> bool:
    """Find evaluations whose rows cannot be dealt: every rank takes all of those; tells whether there are any."""
    for loader in loaders.values():
        if loader.trains:
            continue
        shared = [o for o in loaders.values() if o.trains and set(o.loops) & set(loader.loops)]
        if shared:
            continue
        loader.whole = _form(script, loader)
        for loop in loader.loops:
            loader.whole = loader.whole or _reason(script, bindings, flow, loop)
    for loader in loaders.values():  # loops that two loaders feed are either shared or not
        for other in loaders.values():
            if other.whole and not loader.trains and set(other.loops) & set(loader.loops):
                loader.whole = loader.whole or other.whole
    return any(loader.whole for loader in loaders.values())


def _form(script: Script, loader: Loader) -> str:
    """Tell what in a loader itself keeps its rows together."""
    if loader.foreign:
        return "it is made in another file"
    if loader.pulled:
        return "a batch is taken from it by next()"
    if loader.stream:
        return "a stream has no length"
    if loader.handed:
        return f"{loader.handed[0][0]}() of another file gets it"
    if loader.hides:
        return f"**{loader.hides} may hold its batch_size"
    if own_sampler(script, loader.call) is not None:
        return "it has a sampler"
    return "it has a batch_sampler" if keyword(loader.call, "batch_sampler") is not None else ""


def _reason(script: Script, bindings: Bindings, flow: Flow, loop: ast.For) -> str:
    if any(isinstance(node, _DECIDES) and _leaves(script, node, loop) for node in ast.walk(loop)):
        return "it may end early"
    for node in ast.walk(loop):
        if isinstance(node, (ast.If, ast.While)) and flow.kind(node.test).of_rows:
            return "its rows decide what is done"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and dotted(node.value):
            statement = script.statement(node)
            if isinstance(statement, ast.Assign) and flow.kind(statement.value).of_rows:
                return f"{dotted(node.value)} is filled batch by batch"
        if isinstance(node, ast.Expr) and (owner := fed(flow, node, loop)):
            return f"{owner} is fed with its rows"
    if name := left_over(script, loop):
        return f"{name} is read after it"
    return next(
        (
            f"{found.name} {reason}"
            for found in flow.accumulated.values()
            if found.loop is loop and (reason := unshared(script, bindings, found))
        ),
        "",
    )


def _leaves(script: Script, node: ast.AST, loop: ast.For) -> bool:
    """Tell whether a ``break`` or ``return`` ends this loop."""
    for outer in script.above(node):
        if outer is loop:
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        if isinstance(node, ast.Break) and isinstance(outer, (ast.For, ast.While)):
            return False
    return False


def fed(flow: Flow, node: ast.Expr, loop: ast.For) -> str:
    """Find an object that a loop gives its rows to, to keep: ``evaluator.add_batch(target, prediction)``."""
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr in _QUIET:
        return ""
    owner = dotted(call.func.value)
    if not owner or flow.kind(call.func.value).of_rows or owner.split(".")[0] in ("torch", "np", "F", "nn", "plt"):
        return ""
    made_inside = any(
        isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store) and dotted(n) == owner
        for n in ast.walk(loop)
    )
    given = [*call.args, *(k.value for k in call.keywords)]
    if flow.bindings.callee(call) is not None or any(tail(c) == "tqdm" for c in flow.bindings.origins(call.func.value)):
        return ""
    return owner if not made_inside and any(flow.kind(a).of_rows for a in given) else ""
