"""What else has the rows of a batch: tensors of its size; and one rank that downloads."""

from __future__ import annotations

import ast

from ..plan import Plan
from ..tree import dotted, keyword, tail

SHAPED = {
    *(
        "randn",
        "rand",
        "randint",
        "full",
        "ones",
        "zeros",
        "empty",
        "normal",
        "new_zeros",
        "new_ones",
        "new_full",
        "view",
    ),
    *("reshape", "expand", "init_hidden", "init_state", "arange", "FloatTensor", "LongTensor"),
}


def downloads(plan: Plan) -> None:
    """Let one rank download a dataset, and the others find it there."""
    done = set()
    barrier = plan.dialect.barrier.split("  #")[0]
    for call in plan.script.calls():
        download = keyword(call, "download")
        if not (isinstance(download, ast.Constant) and download.value is True):
            continue
        statement = plan.script.statement(call)
        if statement in done:
            continue
        done.add(statement)
        master = plan.dialect.master
        plan.script.before(statement, f"if not {master}:", f"    {barrier}  # until it is downloaded")
        plan.script.after(statement, f"if {master}:", f"    {barrier}")


def shapes(plan: Plan) -> None:
    """Tensors made with a row for each of the batch have as many rows as this rank has."""
    if plan.per_device:
        return
    for call in plan.script.calls():
        if tail(call) not in SHAPED or not plan.loop_of(call) or not plan.trains(plan.loop_of(call)):  # type: ignore[arg-type]
            continue
        for argument in call.args:
            for node in argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]:
                if dotted(node) in plan.flow.sizes and not plan.flow.kind(node).of_rows:  # a batch's own size is
                    plan.script.replace(node, f"{plan.script.code(node)} // {plan.dialect.world}")
