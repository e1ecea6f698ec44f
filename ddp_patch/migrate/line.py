"""Add the one line to a script that trains, where everything that is to be distributed comes after it."""

from __future__ import annotations

import ast
from pathlib import Path

from ..source.notebooks import is_put_aside
from .bindings import Bindings
from .dialects import DDP
from .neighbours import trains_beside
from .notebook import CELL
from .plan import Plan
from .script import Script
from .tree import dotted

LINE = "import ddp_patch; ddp_patch.enable()"
_FIRST = {"comet_ml"}  # wants to be imported before torch


def add_line(text: str, folder: Path | None = None) -> str:
    """Give the script with the line: below its docstring and ``__future__``, above every other import."""
    script = Script(text)
    if not is_entry(script, folder):
        return text
    below: ast.stmt | None = None
    for node in script.tree.body:
        if (
            (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and below is None)
            or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
            or (isinstance(node, ast.Import) and {a.name for a in node.names} <= _FIRST)
            or _is_of_a_magic(script, node)
        ):
            below = node
        else:
            script.directly_before(node, LINE)
            break
    else:
        if below is not None:
            script.after(below, LINE)
    return script.result()


def _is_of_a_magic(script: Script, node: ast.stmt) -> bool:
    """Tell whether a statement is a cell's magic, ``%%capture``, or of a cell that is not Python: ``%%bash``."""
    rows, row = [line.decode() for line in script.lines], node.lineno - 1
    begin = next((n for n in range(row, -1, -1) if rows[n].startswith(CELL)), -1) + 1
    end = next((n for n in range(row, len(rows)) if rows[n].startswith(CELL)), len(rows))
    cell = [n for n in range(begin, end) if rows[n].strip()]
    is_magic = is_put_aside(rows[cell[0]], "%%")
    return is_magic and (row == cell[0] or all(is_put_aside(rows[n]) for n in cell))


def is_entry(script: Script, folder: Path | None = None) -> bool:
    """Tell whether a file is run, and trains: it is no module that others import, and no script that evaluates."""
    if any(isinstance(n, ast.Import) and any(a.name == "ddp_patch" for a in n.names) for n in script.all(ast.Import)):
        return False
    plan = Plan(script, DDP)
    main = any(isinstance(n, ast.If) and "__name__" in ast.unparse(n.test) for n in script.tree.body)
    runs = [
        n for n in script.tree.body if not isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))
    ]
    if main:
        if plan.backwards or plan.optimizers or trains_beside(script.tree, folder):
            return True
        return _calls_training(script, Bindings(script))
    return any(plan.trains(n) for n in runs) or (
        bool(plan.optimizers)
        and any(script.function(c) is None and not plan.bindings.class_of(c) for c in plan.optimizers)
    )


def _calls_training(script: Script, bindings: Bindings) -> bool:
    """Tell whether a script leaves the training to a module: ``engine.train(model)``."""
    imported = {a.asname or a.name for n in script.all(ast.Import, ast.ImportFrom) for a in n.names}
    return any(
        dotted(c.func).split(".")[0] in imported and dotted(c.func).rsplit(".", 1)[-1].startswith(("train", "fit"))
        for c in script.calls()
        if dotted(c.func)
    )
