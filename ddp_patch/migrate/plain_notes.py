"""What a person has to decide about hand-made distribution, said while it still stands there."""

from __future__ import annotations

import ast
import re

from .evaluation import UNKNOWN
from .plain_pass import Pass
from .plan import OPTIMIZERS
from .tree import dotted, keyword, tail

_RATE = (
    "under DDP the number of ranks was in this rate: if you multiply the batch, to have as many rows per step as then, "
    "multiply this by that number too"
)
_DIVIDED = "this was a sum over ranks, and is now that of one process: if {code} is their number, it has to be 1"
_RATES = re.compile(r"(^|_)(lr|learning_rate)\d*(_|$)", re.I)
_NUMBERS = re.compile(
    r"world|(^|_)(n|num)_?(gpu|proc|rank|replica|device|node)|(^|_)(gpus|procs|processes|ranks|replicas|devices)(_|$)",
    re.I,
)


def apply(scan: Pass) -> None:
    """Leave notes above rates that lose a factor, and above what divides a sum over ranks by nobody knows what."""
    script = scan.script
    for node in _rates(scan):
        if scan.constants.counts(node):
            tests = [n for n in script.above(node) if isinstance(n, ast.If) and scan.constants.is_ranked(n.test)]
            script.todo(tests[-1] if tests else node, _RATE)
    for call in script.calls():
        if tail(call) == "all_reduce" and call.args and scan.is_of_processes(call):
            for place, divisor in _divided(scan, call):
                if scan.constants.value(divisor) is UNKNOWN and _is_number(scan, divisor):
                    script.todo(place, _DIVIDED.format(code=script.code(divisor)))


def _rates(scan: Pass) -> list[ast.expr]:
    """List what is given to learning rates."""
    script = scan.script
    found = [n.value for n in script.all(ast.keyword) if n.arg and _RATES.search(n.arg)]
    found += [n.value for n in script.all(ast.Assign) if any(_RATES.search(tail(t)) for t in n.targets)]
    found += [n.value for n in script.all(ast.AugAssign) if _RATES.search(tail(n.target))]
    found += [rate for c in script.calls() if tail(c) in OPTIMIZERS and (rate := keyword(c, "", 1)) is not None]
    for node in script.all(ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        found += [v for k, v in pairs if isinstance(k, ast.Constant) and _RATES.search(str(k.value))]
    return found


def _divided(scan: Pass, call: ast.Call) -> list[tuple[ast.AST, ast.expr]]:
    """List what divides a tensor behind its sum over ranks: ``t /= n``, ``t.item() / n``, ``t.div_(n)``."""
    script, tensor = scan.script, dotted(call.args[0])
    near = script.function(call)
    found: list[tuple[ast.AST, ast.expr]] = []
    for node in script.all(ast.AugAssign, ast.BinOp, ast.Call):
        of: ast.expr | None = None
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            of, by = node.target, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            of, by = node.left, node.right
        elif isinstance(node, ast.Call) and tail(node) in ("div", "div_") and node.args:
            of, by = node.func, node.args[0]
        if of is not None and tensor and node.lineno > call.lineno and script.function(node) is near:
            found += [(node, by)] if any(dotted(n) == tensor for n in ast.walk(of)) else []
    return found


def _is_number(scan: Pass, node: ast.expr, follow_callers: bool = True) -> bool:
    """Tell whether something may be the number of processes: by its name, or by what callers give for a parameter."""
    function = scan.script.function(node)
    names = (
        [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
        if function is not None and follow_callers
        else []
    )
    for inner in ast.walk(node):
        if function is not None and isinstance(inner, ast.Name) and inner.id in names:
            calls = scan.bindings.callers.get(function, [])
            passed = [scan.bindings.arguments(call, function).get(inner.id) for call in calls]
            unknown = [v for v in passed if v is not None and scan.constants.value(v) is UNKNOWN]
            if not calls or any(_is_number(scan, value, False) for value in unknown):
                return True
            continue
        made = [inner] if isinstance(inner, ast.Call) else scan.bindings.origins(inner)
        if _NUMBERS.search(tail(inner)) or any(tail(c) == "device_count" for c in made):
            return True
    return False
