"""One GPU per rank: ``cuda`` is this rank's, so no number of a GPU stays in the script."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import dotted, tail

_LEFT = "# which GPUs is said at the start: CUDA_VISIBLE_DEVICES=0,1 {launch}"


def apply(plan: Plan) -> None:
    """Take numbers of GPUs out."""
    script = plan.script
    for node in script.all(ast.Constant):
        value = node.value
        numbered = isinstance(value, str) and value.startswith("cuda:") and value[5:].isdigit()
        if numbered and not any(isinstance(n, ast.JoinedStr) for n in script.above(node)):
            script.replace(node, '"cuda"')
    for node in script.all(ast.JoinedStr):
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            script.replace(node, '"cuda"')
    for call in script.calls():
        name = dotted(call.func)
        if name == "torch.cuda.set_device":
            statement = script.statement(call)
            if isinstance(statement, ast.Expr) and statement.value is call:
                script.delete(statement)
        elif (
            tail(call) == "cuda"
            and isinstance(call.func, ast.Attribute)
            and len(call.args) == 1
            and name != "torch.cuda"
        ):
            end = script.span(call.keywords[0])[0] if call.keywords else script.span(call.args[0])[1]
            script.put(script.span(call.args[0])[0], end, "")
        elif name == "torch.device" and len(call.args) == 2:
            script.put(script.span(call.args[0])[1], script.span(call.args[1])[1], "")
    for node in script.all(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and dotted(target.value) == "os.environ":
            key = target.slice
            if isinstance(key, ast.Constant) and key.value == "CUDA_VISIBLE_DEVICES":
                script.replace(node, _LEFT.format(launch=plan.dialect.launch.split()[0]) + " ...")
                if len(script.block(node)) == 1 and script.parents[node] is not script.tree:
                    script.after(node, "pass")
