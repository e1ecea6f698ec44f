"""What only the whole batch tells: losses that compare its rows, metrics of another file. Each rank gets all rows."""

from __future__ import annotations

import ast

from ..plan import Plan


def apply(plan: Plan) -> None:
    """Give the rows of all ranks to the calls that need them; their gradients find back to each rank."""
    script = plan.script
    for call, rows in plan.flow.whole_calls.items():
        helper = plan.use("whole_batch")
        run: list[ast.expr] = []
        for argument in call.args:
            if argument not in rows or (run and isinstance(run[-1], ast.Starred)):
                break
            run.append(argument)
        if run:
            script.put(script.span(run[0])[0], script.span(run[0])[0], f"*{helper}(")
            script.put(script.span(run[-1])[1], script.span(run[-1])[1], ")")
        for argument in rows:
            if argument not in run:
                start, end = script.span(argument)
                star = isinstance(argument, ast.Starred)
                script.put(start, start, f"*{helper}(" if star else f"{helper}(")
                script.put(end, end, ")" if star else ")[0]")
