"""The top of a file: the imports and the functions that its new lines need."""

from __future__ import annotations

import ast
import re
from typing import Any

from ..functions import HELPERS, NEEDED
from ..parts import Part
from ..plan import Plan
from ..script import Script
from .seeds import libraries

_WORDS = {
    "ddp": re.compile(r"\b(ddp_rank|ddp_local_rank|ddp_world_size|ddp_device|master_process|dist)\b"),
    "accelerate": re.compile(r"\baccelerator\b"),
}


def apply(plan: Plan, script: Script, tops: list[list[str]]) -> None:
    """Write the top of each file, whose new lines are all there."""
    for part, lines in zip(script.parts, tops, strict=True):
        _Top(plan, script, part).write(lines)


class _Top:
    """What one file needs."""

    def __init__(self, plan: Plan, script: Script, part: Part) -> None:
        self.plan, self.script, self.part = plan, script, part
        self.text = script.text if part.path is None else "\n".join(map(script.code, part.body))

    def write(self, top: list[str]) -> None:
        helpers = self._helpers()
        alone = self.part.path is None
        used = " ".join([self.text, *helpers])
        if not (alone or self.part.is_script or _WORDS[self.plan.dialect.name].search(used) or helpers):
            return
        body, script = self.part.body, self.script
        where = _last_import(body)
        wanted = self._imports(top)
        if not self.part.is_script:
            used = " ".join([used, *top])
            wanted = [line for line in wanted if re.search(rf"\b{line.split()[-1]}\b", used)]
        lines = [line for line in wanted if "torch" in line or "accelerate" in line]
        others = [line for line in wanted if line not in lines]
        if others:
            script.directly_before(first_import(body), *others)
        if top:
            lines += ["", *top]
        for text in helpers:
            lines += ["", "", *text.rstrip().split("\n")]
        following = body[body.index(where) + 1] if where in body and body.index(where) + 1 < len(body) else None
        near = following is not None and script.line_of(following) - (where.end_lineno or 0) < 2
        if isinstance(following, (ast.FunctionDef, ast.ClassDef)) and helpers and near:
            lines += [""]
        script.after(where, *(indented(line, self.part.unit) for line in lines), first=True)

    def _imports(self, top: list[str]) -> list[str]:
        plan, script = self.plan, self.script
        present = set()
        last = _last_import(self.part.body).lineno  # what is imported further down comes too late
        for node in self._all(ast.Import):
            if node.lineno <= last and isinstance(script.parents[node], (ast.Module, ast.Try)):
                present |= {f"import {a.name}" + (f" as {a.asname}" if a.asname else "") for a in node.names}
        for node in self._all(ast.ImportFrom):
            if node.lineno <= last and isinstance(script.parents[node], (ast.Module, ast.Try)):
                present |= {f"from {node.module} import {a.name}" for a in node.names}
        imported = {a.name for n in self._all(ast.Import) for a in n.names}
        wanted = [*plan.dialect.imports, *libraries(plan, imported)]
        if plan.dialect.name == "accelerate":
            if "all_rows" in plan.helpers:
                wanted.append("from accelerate.utils import gather_object")
            if "RankBatches" in plan.helpers:
                wanted.append("from accelerate.utils import broadcast_object_list")
            if plan.keeps_buffers or plan.has_unused:
                wanted.append("from accelerate.utils import DistributedDataParallelKwargs")
        if "rank_loader" not in plan.helpers and not re.search(r"\bDistributedSampler[()]", self.text):
            wanted = [line for line in wanted if "DistributedSampler" not in line]
        if not plan.wraps or (self.part.path is not None and "DistributedDataParallel(" not in self.text):
            wanted = [line for line in wanted if "DistributedDataParallel" not in line]
        wanted += [
            f"import {name}"
            for name in ("logging",)
            if any("logging.disable" in line for line in (self.text, *top)) and f"import {name}" not in present
        ]
        return [line for line in wanted if line not in present]

    def _helpers(self) -> list[str]:
        plan = self.plan
        wanted = set(plan.helpers)
        if self.part.path is not None:
            wanted = {name for name in wanted if name == "barrier" or re.search(rf"\b{name}\b", self.text)}
        for name, more in NEEDED.items():
            if name in wanted:
                wanted |= set(more)
        if {"rows_of", "RankSampler"} <= wanted:
            wanted = wanted - {"rows_of"} | {"rows_of, RankSampler"}
        d = plan.dialect
        words = {
            "rank": d.rank,
            "world": d.world,
            "master": d.master,
            "device": d.device,
            "add": d.add,
            "gather": d.gather,
            "collect": d.collect,
            "share": d.share,
        }
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

    def _all(self, kind: type[ast.AST]) -> list[Any]:
        return [n for n in self.script.all(kind) if self.script.part(n) is self.part]


def first_import(body: list[ast.stmt]) -> ast.stmt:
    """Find the first import, or the last statement where there is none."""
    plain = (n for n in body if _imports(n) and not (isinstance(n, ast.ImportFrom) and n.module == "__future__"))
    return next(plain, body[-1])


def _imports(node: ast.stmt) -> bool:
    inner = node.body if isinstance(node, ast.Try) else [node]
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in inner)


def _last_import(body: list[ast.stmt]) -> ast.stmt:
    found: ast.stmt | None = None
    for node in body:
        if _imports(node):
            found = node
        elif not isinstance(node, ast.Expr) or (found is None and not isinstance(node.value, ast.Constant)):
            break
    return found if found is not None else body[0]


def indented(line: str, unit: str) -> str:
    """Indent a line of ours as the script does."""
    depth = (len(line) - len(line.lstrip(" "))) // 4
    return unit * depth + line[4 * depth :]
