"""What is left of several processes once the code for them is gone: comments, imports, calls that nobody knows."""

from __future__ import annotations

import ast
import re

from .bindings import Bindings
from .script import Script
from .taken import (
    IMPORTED,
    WRITTEN_LINES,
)  # fmt: skip
from .tree import dotted, lines_of, tail

_ALONE = "{name} is for several processes, and this script is now that of one: take it out"


_SAMPLER = (
    "this sampler gave each rank its rows: give the loader shuffle=... in its place, and as many rows per batch as all "
    "ranks took together"
)
_EPOCH = "whether this sampler is one of several processes, another file says: take this out where it no longer is"


def without_written_lines(text: str) -> str:
    """Take out what a migration wrote as comments."""
    text = re.sub(r"\n\nLaunch: [^\n]*\n(\"\"\"|''')", r"\1", text, count=1)
    lines = []
    for line in lines_of(text):
        if not any(written in line for written in WRITTEN_LINES):
            lines.append(line)
        elif not line.strip().startswith(("#", "Launch:", '"""Launch:')):
            lines.append(re.sub(r"  #.*", "", line))
    return "".join(lines)


def unused(script: Script) -> None:
    """Take out imports that nothing needs any more."""
    used = {n.id for n in script.all(ast.Name)} | {
        n.value.id for n in script.all(ast.Attribute) if isinstance(n.value, ast.Name)
    }
    for node in [*script.all(ast.Import, ast.ImportFrom)]:
        names = node.names
        full = getattr(node, "module", None)
        unused = [
            a
            for a in names
            if (a.asname or a.name).split(".")[0] not in used
            and (
                a.name in IMPORTED
                or f"{full}.{a.name}" in IMPORTED
                or f"{full or a.name}".startswith("torch.distributed")
            )
        ]
        if "torch.distributed" in [a.name for a in names if a.asname is None]:
            unused += [a for a in names if a.name == "torch.distributed" and "torch.distributed." not in script.text]
        if len(unused) == len(names):
            script.delete(node)
        elif unused:
            kept = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in names if a not in unused)
            script.replace(node, f"from {full} import {kept}" if isinstance(node, ast.ImportFrom) else f"import {kept}")


def left(script: Script) -> None:
    """Say what could not be taken out."""
    bindings = Bindings(script)
    for call in script.calls():
        name = dotted(call.func)
        if tail(call) == "DistributedSampler":
            script.todo(call, _SAMPLER)
        if tail(call) == "set_epoch" and "sampler" in name.lower() and not bindings.origins(call.func.value):  # type: ignore[attr-defined]
            script.todo(call, _EPOCH)
        if name.startswith(("dist.", "torch.distributed.", "accelerator.")) or tail(call) == "Accelerator":
            script.todo(call, _ALONE.format(name=f"{name}()"))
    defines_no_sync = any(function.name == "no_sync" for function in script.all(ast.FunctionDef))
    for node in script.all(ast.Attribute):
        if node.attr == "no_sync" and not defines_no_sync:
            script.todo(node, _ALONE.format(name=script.code(node)))
