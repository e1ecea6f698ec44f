"""Evaluations whose rows cannot be dealt, and why: every rank takes all of them."""

from __future__ import annotations

import ast

from .bindings import Bindings
from .flow import Flow
from .gathering import left_over, unshared
from .loaders import Loader, explicit_sampler
from .script import Script
from .tree import dotted, keyword, tail
from .values import Kind

_WRITES = {"save_image", "save_images", "imsave", "imwrite", "savefig", "write", "writerow", "writerows", "save"}
_DECIDES = (ast.Break, ast.Return)
_EARLY = (
    "this may end early, and takes batches of a training and of a test loader, of which ranks have other ones than one "
    "process: write a loop for each of the two"
)
_BOTH = (
    "this trains on batches of one loader and evaluates those of another, of which ranks take some rows twice, to have "
    "as many: write a loop for each of the two"
)
_QUIET = {
    *("print", "write", "writerow", "info", "debug", "warning", "log", "set_postfix", "set_description", "append"),
    *("extend", "update", "to", "cuda", "add_scalar", "add_image", "add_images", "add_figure", "save_image", "savefig"),
    *("imshow", "show", "imsave", "imwrite", "save", "add_", "mul_", "div_", "sub_", "copy_", "fill_", "eval", "train"),
    *("set_title", "plot", "hist", "scatter", "add_text", "pprint", "backward", "step", "zero_grad", "detach_"),
}


def take_whole(script: Script, bindings: Bindings, flow: Flow, loaders: dict[ast.expr, Loader]) -> bool:
    """Find evaluations whose rows cannot be dealt: every rank takes all of those; tells whether there are any."""
    for loop in flow.loader_loops:
        feeding = [loader for loader in loaders.values() if loop in loader.loops]
        if len(feeding) > 1 and all(loader.pads for loader in feeding) and _trains_at_times(script, loop):
            script.todo(loop, _BOTH)
    for loader in loaders.values():
        if loader.trains:
            continue
        shared = [o for o in loaders.values() if o.trains and set(o.loops) & set(loader.loops)]
        if shared:
            for loop in loader.loops:
                if _may_end_early(script, loop) and any(loop in other.loops for other in shared):
                    script.todo(loop, _EARLY)
            continue
        loader.whole = _form(script, loader)
        for loop in loader.loops:
            loader.whole = loader.whole or _reason(script, bindings, flow, loop)
    for loader in loaders.values():  # loops that two loaders feed are either shared or not
        for other in loaders.values():
            if other.whole and not loader.trains and set(other.loops) & set(loader.loops):
                loader.whole = loader.whole or other.whole
    return any(loader.whole for loader in loaders.values())


def repeat_lists(dealt: Flow, flow: Flow) -> None:
    """Note what lists every rank makes of the same rows, where they are of numbers: ``losses.append(loss.item())``."""
    for (loop, name), found in dealt.accumulated.items():
        calls = [s.value for s in found.statements if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
        conversions = [tail(call.args[0]) for call in calls if call.args]
        means = found.value.listed and found.value.kind is Kind.MEAN and set(conversions) <= {"item", "float"}
        if means and len(conversions) == len(found.statements) and flow.is_whole(flow.loader_loops[loop]):
            flow.repeated[loop, name] = None


def _form(script: Script, loader: Loader) -> str:
    """Tell what in a loader itself keeps its rows together."""
    if loader.foreign:
        return "it is made in another file"
    if loader.pulled:
        return "a batch is taken from it by next()"
    if loader.comprehensions:
        return "a comprehension takes its batches"
    if loader.stream:
        return "a stream has no length"
    if loader.handed:
        return f"{loader.handed[0][0]}() of another file gets it"
    if loader.hides:
        return f"**{loader.hides} may hold its batch_size"
    if explicit_sampler(script, loader.call) is not None:
        return "it has a sampler"
    return "it has a batch_sampler" if keyword(loader.call, "batch_sampler") is not None else ""


def _reason(script: Script, bindings: Bindings, flow: Flow, loop: ast.For) -> str:
    if _may_end_early(script, loop):
        return "it may end early"
    for node in ast.walk(loop):
        if isinstance(node, (ast.If, ast.While)) and flow.kind(node.test).of_rows:
            return "its rows decide what is done"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and dotted(node.value):
            statement = script.statement(node)
            if isinstance(statement, ast.Assign) and flow.kind(statement.value).of_rows:
                return f"{dotted(node.value)} is filled batch by batch"
        if isinstance(node, ast.AugAssign) and _is_table(node.target):
            return f"{script.code(node.target)} is counted row by row"
        if isinstance(node, ast.Expr) and _is_kept_by_key(flow, node):
            return "its rows are kept in lists of a table"
        if isinstance(node, ast.Expr) and (owner := fed(flow, node, loop)):
            return f"{owner} is fed with its rows"
        if writes(script, flow, node, loop):
            return "its rows are written to files"
    if name := left_over(script, loop, flow.loader_loops[loop]):
        return f"{name} is read after it"
    return next(
        (
            f"{found.name} {reason}"
            for found in flow.accumulated.values()
            if found.loop is loop and (reason := unshared(script, bindings, found))
        ),
        "",
    )


def _is_table(target: ast.expr) -> bool:
    """Tell whether rows decide which entry is counted, as in a confusion matrix: ``counts[t, p] += 1``."""
    if not isinstance(target, ast.Subscript):
        return False
    return not all(isinstance(n, (ast.Constant, ast.Tuple, ast.Load)) for n in ast.walk(target.slice))


def _is_kept_by_key(flow: Flow, node: ast.Expr) -> bool:
    """Tell whether rows go into a list of a dictionary: ``rows["p"].extend(output.tolist())``."""
    call = node.value
    if not isinstance(call, ast.Call) or tail(call) not in ("append", "extend", "add", "update"):
        return False
    owner = getattr(call.func, "value", None)
    return isinstance(owner, ast.Subscript) and any(flow.kind(argument).of_rows for argument in call.args)


def _trains_at_times(script: Script, loop: ast.For) -> bool:
    """Tell whether a test that is not of the batch decides if a loop trains: ``if phase == "train":``."""
    inside = set(ast.walk(loop))
    stored = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    backwards = [n for n in inside if tail(n) == "backward" and isinstance(n, ast.Call)]
    tests = [n for call in backwards for n in script.above(call) if n in inside and isinstance(n, ast.If)]
    return any(
        stored.isdisjoint(n.id for n in ast.walk(test.test) if isinstance(n, ast.Name))
        and not all(any(call in ast.walk(s) for s in body for call in backwards) for body in (test.body, test.orelse))
        for test in tests
    )


def writes(script: Script, flow: Flow, node: ast.AST, loop: ast.For) -> bool:
    """Tell whether a statement writes what comes of a batch, for more batches than the first."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or tail(call) not in _WRITES or dotted(call.func) == "tqdm.write":
        return False
    tests = [n.test for n in script.above(node) if isinstance(n, ast.If) and loop in script.above(n)]
    if any(isinstance(t, ast.Compare) and isinstance(t.ops[0], ast.Eq) and ast.unparse(t.comparators[0]) == "0"
           and not isinstance(t.left, ast.BinOp) for t in tests):  # fmt: skip
        return False
    inside = [n for a in (*call.args, *call.keywords) for n in ast.walk(a) if isinstance(n, ast.expr)]
    return any(flow.kind(n).of_rows for n in inside)


def _may_end_early(script: Script, loop: ast.For) -> bool:
    return any(isinstance(node, _DECIDES) and _leaves(script, node, loop) for node in ast.walk(loop))


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
    arguments = [*call.args, *(k.value for k in call.keywords)]
    if flow.bindings.callee(call) is not None or any(tail(c) == "tqdm" for c in flow.bindings.origins(call.func.value)):
        return ""
    return owner if not made_inside and any(flow.kind(a).of_rows for a in arguments) else ""
