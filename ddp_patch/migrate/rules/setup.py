"""The beginning and the end of what is run: process group, seeds, how to start it."""

from __future__ import annotations

import ast

from ..parts import Part
from ..plan import Plan
from ..tree import tail
from .placing import is_main
from .seeds import alike
from .tops import first_import, indented

_MODULE = (
    "this is a module: let the script that calls it begin with dist.init_process_group(), and end with "
    "dist.destroy_process_group()"
)
_BUILDING = {"DataLoader", "DataParallel", "SummaryWriter"}


def apply(plan: Plan, name: str) -> list[list[str]]:
    """Write how every script begins and ends; gives for each file the lines that belong below its imports."""
    for statement, lines in plan.wraps:
        plan.script.after(statement, *lines)
    tops = []
    for part in plan.script.parts:
        if part.is_script:
            _docstring(plan, part, part.path.name if part.path is not None else name)
        tops.append(_begin(plan, part) if part.is_script else accelerator(plan) or list(plan.dialect.header))
    return tops


def _begin(plan: Plan, part: Part) -> list[str]:
    """Begin and end a script; gives the lines that belong below its imports."""
    body, script = part.body, plan.script
    first, start = list(plan.dialect.header), _start(plan, part)
    guard = next((n for n in body if is_main(n)), None)
    alone = part.path is None
    if alone and guard is None and not any(plan.trains(n) or _optimizes(plan, n) for n in body if not _defines(n)):
        if plan.dialect.name == "ddp":
            script.todo(first_import(body), _MODULE)
        return first if plan.dialect.name == "ddp" else [*first, *start]
    if isinstance(guard, ast.If) and not _builds_outside(plan, part, guard):
        inside = set(ast.walk(guard))
        if alone and all(call in inside for call in plan.backwards):  # importers know of no ranks
            first, start = [], [*first, *start]
        script.before(guard.body[0], *(indented(line, part.unit) for line in start))
        script.after(guard.body[-1], *_end(plan, part))
        return first
    ending = isinstance(body[-1], (ast.For, ast.While, ast.If, ast.With))
    script.after(body[-1], *([""] if ending else []), *_end(plan, part))
    return [*first, *start]


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))


def _optimizes(plan: Plan, node: ast.stmt) -> bool:
    inside = set(ast.walk(node))
    return any(c in inside for c in plan.optimizers)


def _start(plan: Plan, part: Part) -> list[str]:
    lines = accelerator(plan) or list(plan.dialect.start)
    lines.append(f"if not {plan.dialect.master}:")
    lines.append('    sys.stdout = open(os.devnull, "w")  # one rank prints; all work out what is printed')
    if "logging" in plan.script.text:
        lines.append("    logging.disable(logging.CRITICAL)")
    lines += alike(plan, part)
    return lines


def accelerator(plan: Plan) -> list[str]:
    """Write what makes Accelerate's object; nothing for plain DDP."""
    if plan.dialect.name != "accelerate":
        return []
    options = ["broadcast_buffers=False"] * plan.keeps_buffers + ["find_unused_parameters=True"] * plan.has_unused
    if not options:
        return list(plan.dialect.start)
    return [
        "accelerator = Accelerator(",
        "    cpu=not torch.cuda.is_available(),",
        f"    kwargs_handlers=[DistributedDataParallelKwargs({', '.join(options)})],",
        ")",
    ]


def _end(plan: Plan, part: Part) -> list[str]:
    names = [name for (scope, _), name in plan.wrappers.items() if scope is part.scope and plan.wraps]
    return [*([f"del {', '.join(names)}"] if names else []), *plan.dialect.end]


def _builds_outside(plan: Plan, part: Part, guard: ast.If) -> bool:
    inside = set(ast.walk(guard))
    if any(s in part.body and s is not guard for s, _ in plan.wraps):
        return True
    return any(
        (tail(c) in _BUILDING or c in plan.optimizers) and plan.script.function(c) is None and c not in inside
        for c in plan.script.calls()
        if plan.script.part(c) is part
    )


def _docstring(plan: Plan, part: Part, name: str) -> None:
    script = plan.script
    launch = "Launch: " + plan.dialect.launch.format(script=name.replace(".ipynb", ".py"))
    if name.endswith(".ipynb"):
        launch = launch.replace("Launch: ", f"Launch: jupyter nbconvert --to script {name}, then ")
    first = part.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        code = script.code(first.value)
        quotes = '"""' if code.endswith('"""') else "'''" if code.endswith("'''") else ""
        if quotes:
            end = script.span(first.value)[1] - 3
            blank = len(script.data[:end]) - len(script.data[:end].rstrip())
            if blank:
                script.put(end - blank, end, "")
            script.put(end - blank, end - blank, f"{script.newline}{script.newline}{launch}{script.newline}")
            return
        script.after(first, f"# {launch}")
        return
    script.before_text(f'"""{launch}"""', part)
