"""The top and the end of the script: imports, process group, helpers, how to start it."""

from __future__ import annotations

import ast

from ..dialects import HELPERS, NEEDED
from ..plan import Plan
from ..tree import tail
from .placing import is_main
from .seeds import alike, libraries

_MODULE = (
    "this is a module: let the script that calls it begin with dist.init_process_group(), and end with "
    "dist.destroy_process_group()"
)
_BUILDING = {"DataLoader", "DataParallel", "SummaryWriter"}


def apply(plan: Plan, name: str) -> None:
    """Write what every migrated script begins and ends with."""
    for statement, lines in plan.wraps:
        plan.script.after(statement, *lines)
    _docstring(plan, name)
    first, start = _header(plan), _start(plan)
    guard = next((n for n in plan.script.tree.body if is_main(n)), None)
    body = plan.script.tree.body
    if guard is None and not any(plan.trains(n) or _optimizes(plan, n) for n in body if not _defines(n)):
        top = first if plan.dialect.name == "ddp" else [*first, *start]
        if plan.dialect.name == "ddp":
            plan.script.todo(_first_import(plan), _MODULE)
    elif isinstance(guard, ast.If) and not _builds_outside(plan, guard):
        inside = set(ast.walk(guard))
        if all(call in inside for call in plan.backwards):  # what others import knows of no ranks
            first, start = [], [*first, *start]
        plan.script.before(guard.body[0], *(_indented(line, plan.script.unit) for line in start))
        plan.script.after(guard.body[-1], *_end(plan))
        top = first
    else:
        top = [*first, *start]
        ending = isinstance(body[-1], (ast.For, ast.While, ast.If, ast.With))
        plan.script.after(body[-1], *([""] if ending else []), *_end(plan))
    helpers = _helpers(plan)
    where = _last_import(plan)
    wanted = _imports(plan)
    lines = [line for line in wanted if "torch" in line or "accelerate" in line]
    own = [line for line in wanted if line not in lines]
    if own:
        plan.script.directly_before(_first_import(plan), *own)
    if top:
        lines += ["", *top]
    for text in helpers:
        lines += ["", "", *text.rstrip().split("\n")]
    following = body[body.index(where) + 1] if where in body and body.index(where) + 1 < len(body) else None
    if isinstance(following, (ast.FunctionDef, ast.ClassDef)) and helpers:
        lines += [""]
    plan.script.after(where, *(_indented(line, plan.script.unit) for line in lines), first=True)


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))


def _optimizes(plan: Plan, node: ast.stmt) -> bool:
    inside = set(ast.walk(node))
    return any(c in inside for c in plan.optimizers)


def _indented(line: str, unit: str) -> str:
    """Indent a line of ours as the script does."""
    depth = (len(line) - len(line.lstrip(" "))) // 4
    return unit * depth + line[4 * depth :]


def _imports(plan: Plan) -> list[str]:
    present = set()
    last = _last_import(plan).lineno  # what is imported further down comes too late
    for node in plan.script.all(ast.Import):
        if node.lineno <= last and isinstance(plan.script.parents[node], (ast.Module, ast.Try)):
            present |= {f"import {a.name}" + (f" as {a.asname}" if a.asname else "") for a in node.names}
    for node in plan.script.all(ast.ImportFrom):
        if node.lineno <= last and isinstance(plan.script.parents[node], (ast.Module, ast.Try)):
            present |= {f"from {node.module} import {a.name}" for a in node.names}
    wanted = [*plan.dialect.imports, *libraries(plan)]
    if plan.dialect.name == "accelerate":
        if "all_rows" in plan.helpers:
            wanted.append("from accelerate.utils import gather_object")
        if plan.keeps_buffers or plan.has_unused:
            wanted.append("from accelerate.utils import DistributedDataParallelKwargs")
    sharing = "rank_loader" in plan.helpers
    if not sharing and not any("DistributedSampler(" in text for _, _, _, text in plan.script._edits):
        wanted = [line for line in wanted if "DistributedSampler" not in line]
    if not plan.wraps:
        wanted = [line for line in wanted if "DistributedDataParallel" not in line]
    wanted += [
        f"import {name}" for name in ("logging",) if "logging" in plan.script.text and f"import {name}" not in present
    ]
    return [line for line in wanted if line not in present]


def _header(plan: Plan) -> list[str]:
    return list(plan.dialect.header)


def _start(plan: Plan) -> list[str]:
    lines = list(plan.dialect.start)
    given = ["broadcast_buffers=False"] * plan.keeps_buffers + ["find_unused_parameters=True"] * plan.has_unused
    if given and plan.dialect.name == "accelerate":
        lines = [
            "accelerator = Accelerator(",
            "    cpu=not torch.cuda.is_available(),",
            f"    kwargs_handlers=[DistributedDataParallelKwargs({', '.join(given)})],",
            ")",
        ]
    lines.append(f"if not {plan.dialect.master}:")
    lines.append('    sys.stdout = open(os.devnull, "w")  # one rank prints; all work out what is printed')
    if "logging" in plan.script.text:
        lines.append("    logging.disable(logging.CRITICAL)")
    lines += alike(plan)
    return lines


def _end(plan: Plan) -> list[str]:
    names = [name for (scope, _), name in plan.wrappers.items() if scope is None and plan.wraps]
    return [*([f"del {', '.join(names)}"] if names else []), *plan.dialect.end]


def _helpers(plan: Plan) -> list[str]:
    wanted = set(plan.helpers)
    for name, more in NEEDED.items():
        if name in wanted:
            wanted |= set(more)
    if {"rows_of", "RankSampler"} <= wanted:
        wanted = wanted - {"rows_of"} | {"rows_of, RankSampler"}
    d = plan.dialect
    words = {"rank": d.rank, "world": d.world, "master": d.master, "device": d.device, "add": d.add, "gather": d.gather}
    texts = []
    for name, text in HELPERS.items():
        if name in wanted:
            written = text.format(**words)
            if name == "rank_loader" and plan.per_device:
                written = written.replace("rank_share(loader.batch_size)", "loader.batch_size")
            if name == "save_once" and "barrier" in wanted:
                written = written.replace("(state, path, **", "(state, path, wait=True, **")
                written += f"    if wait:\n        {d.barrier}\n"
            texts.append(written)
    return texts


def _builds_outside(plan: Plan, guard: ast.If) -> bool:
    inside = set(ast.walk(guard))
    return any(
        (tail(c) in _BUILDING or c in plan.optimizers) and plan.script.function(c) is None and c not in inside
        for c in plan.script.calls()
    )


def _first_import(plan: Plan) -> ast.stmt:
    imports = (n for n in plan.script.tree.body if isinstance(n, (ast.Import, ast.ImportFrom)))
    plain = (n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__"))
    return next(plain, plan.script.tree.body[-1])


def _last_import(plan: Plan) -> ast.stmt:
    found: ast.stmt | None = None
    for node in plan.script.tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Try) and any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in node.body)
        ):
            found = node
        elif not isinstance(node, ast.Expr) or (found is None and not isinstance(node.value, ast.Constant)):
            break
    return found if found is not None else plan.script.tree.body[0]


def _docstring(plan: Plan, name: str) -> None:
    script = plan.script
    launch = "Launch: " + plan.dialect.launch.format(script=name.replace(".ipynb", ".py"))
    if name.endswith(".ipynb"):
        launch = launch.replace("Launch: ", f"Launch: jupyter nbconvert --to script {name}, then ")
    first = script.tree.body[0]
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
    script.before_text(f'"""{launch}"""')
