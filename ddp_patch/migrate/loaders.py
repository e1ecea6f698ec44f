"""The loaders of a script: what each one feeds, and whether ranks share its rows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .bindings import Bindings
from .flow import Flow
from .script import Script
from .tree import dotted, keyword, tail

_LIBRARY_FUNCTIONS = {
    *("iter", "next", "enumerate", "tqdm", "trange", "len", "zip", "islice", "list", "cycle", "prepare", "print"),
    *("isinstance", "chain", "range", "type", "id", "hasattr", "getattr", "append", "dict", "tuple", "reversed"),
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
    comprehensions: list[ast.comprehension]  # that take its batches
    whole: str = ""  # why every rank takes all of it

    @property
    def foreign(self) -> bool:
        """It is made by a function of another file."""
        return self.node is not self.call

    @property
    def shuffles(self) -> bool:
        """It may have another order in every epoch."""
        shuffle = keyword(self.call, "shuffle", 2)
        return (
            self.foreign or bool(self.hides) or (shuffle is not None and getattr(shuffle, "value", True) is not False)
        )

    @property
    def drop_last(self) -> ast.expr | None:
        """What the loader does with a last batch that is not full."""
        argument = keyword(self.call, "drop_last", 8) if not self.foreign else None
        return None if isinstance(argument, ast.Constant) and not argument.value else argument

    @property
    def pads(self) -> bool:
        """Some rows may be taken twice, so that all ranks have as many."""
        return self.trains and self.drop_last is None


_ITERATED = {"enumerate", "tqdm", "zip", "iter", "islice", "chain", "list", "tuple", "cycle", "reversed"}


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
                found[node] = Loader(node, made, dotted(node), loops, learns, False, False, "", [], handed, [])
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
            taken = [
                n for n in script.all(ast.comprehension) if any(call in bindings.origins(e) for e in _below(n.iter))
            ]
            found[call] = Loader(call, call, name, loops, learns, bool(pulls), stream, hides, sizes, handed, taken)
    return found


def _below(iterated: ast.expr) -> list[ast.expr]:
    """What is looped over, and what enumerate(), tqdm() and their kin are given."""
    if isinstance(iterated, ast.Call) and tail(iterated) in _ITERATED:
        return [iterated, *(inner for argument in iterated.args for inner in _below(argument))]
    return [iterated]


def is_put_away(script: Script, loader: Loader) -> bool:
    """Tell whether nothing is known of who takes a loader's batches, as a container holds it."""
    if loader.loops or loader.pulled or loader.handed or loader.comprehensions:
        return False
    names = [n for n in script.all(ast.Name) if n.id == loader.name and isinstance(n.ctx, ast.Load)]
    containers = (ast.Dict, ast.List, ast.Tuple)
    around = {outer for node in (loader.call, *names) for outer in script.above(node)}
    return any(
        isinstance(n, containers) or (isinstance(n, ast.Assign) and _is_put(n, [*names, loader.call])) for n in around
    )


def _is_put(node: ast.Assign, expressions: Sequence[ast.expr]) -> bool:
    return node.value in expressions and any(isinstance(target, ast.Subscript) for target in node.targets)


def _is_foreign(bindings: Bindings, call: ast.Call) -> bool:
    """Tell whether a call may run a function of another file."""
    name = tail(call)
    return name not in _LIBRARY_FUNCTIONS and name not in bindings.classes and bindings.callee(call) is None


def _gets(flow: Flow, call: ast.Call, loader: ast.expr) -> bool:
    arguments = [*call.args, *(k.value for k in call.keywords)]
    return any(isinstance(g, (ast.Name, ast.Attribute)) and loader in flow.loader_calls(g) for g in arguments)


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
    for argument in call.keywords:
        if argument.arg is not None:
            continue
        name = dotted(argument.value)
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
            hides = hides or script.code(argument.value)
        sizes += [size for value in values for size in _named(value, "batch_size")]
    return hides, sizes


def _either(value: ast.expr) -> list[ast.expr]:
    return [*_either(value.body), *_either(value.orelse)] if isinstance(value, ast.IfExp) else [value]


def explicit_sampler(script: Script, call: ast.Call) -> ast.expr | None:
    """Find the sampler that a loader is given, unless that is None."""
    sampler = keyword(call, "sampler")
    if sampler is None or (isinstance(sampler, ast.Constant) and sampler.value is None):
        return None
    name = dotted(sampler)
    bound = [n.value for n in script.all(ast.Assign) if name and name in [dotted(t) for t in n.targets]]
    return None if bound and all(isinstance(v, ast.Constant) and v.value is None for v in bound) else sampler


def _named(value: ast.expr, name: str) -> list[ast.expr]:
    """Find the values that a dictionary's literal gives to a name."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name]
    return [k.value for k in value.keywords if k.arg == name] if isinstance(value, ast.Call) else []


def _in_training(script: Script, trains: Callable[[ast.AST], bool], node: ast.AST) -> bool:
    function = script.function(node)
    return trains(function if function is not None else script.tree)
