"""Lines of a script that do what ddp_patch cannot see, for when its numbers are others on several ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .causes import Cause, Source, once
from .difference import Difference
from .observed import Observed

_UNSEEN = {
    "environ": "a forward reads the environment, which may change how rows hang together unseen",
    "getenv": "a forward reads the environment, which may change how rows hang together unseen",
    "open": "a forward reads a file, which may change how rows hang together unseen",
    "time": "a forward reads the clock, which ranks read at other moments",
    "perf_counter": "a forward reads the clock, which ranks read at other moments",
}


def pitfalls(script: Path, ranks: Observed, found: Sequence[Difference]) -> list[Cause]:
    """Name the lines to look at, the likeliest first.

    Args:
        script: that was run.
        ranks: what it did on ranks.
        found: the differences.
    """
    source = Source(script)
    named = [
        *((note["line"], f"{note['name']}() makes ranks differ, here") for note in ranks.notes.get("rank", [])),
        *_hooks(source),
        *_forwards(source),
        *_datasets(source),
    ]
    if found and found[0].what == "printed" and found[0].line:
        named.insert(0, (found[0].line, "prints another number than one process"))
    loss = next((one for one in found if one.what == "loss"), None)
    if loss is not None:
        named.append((source.assignment(loss.line) or loss.line, "the first loss that differs is made here"))
    return once(named)


def _hooks(source: Source) -> Iterator[Cause]:
    for line in source.having("grad_fn", "register_hook"):
        yield line, "a hook on a node of the graph sees this rank's rows. Hook the tensor: x.register_hook"


def _forwards(source: Source) -> Iterator[Cause]:
    for function in _functions(source, "forward", "__call__"):
        for node in ast.walk(function):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if isinstance(node, (ast.Attribute, ast.Name)) and name in _UNSEEN:
                yield f"{source.name}:{node.lineno}", _UNSEEN[name]


def _datasets(source: Source) -> Iterator[Cause]:
    for function in _functions(source, "__getitem__", "__iter__", "collate", "collate_fn"):
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            writes = isinstance(node, (ast.Assign, ast.AugAssign))
            if writes and any(_is_of_self(target) for target in targets):
                why = "a dataset writes down what it is asked for: each rank is asked for its own rows"
                yield f"{source.name}:{getattr(node, 'lineno', 0)}", why


def _is_of_self(target: Any) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    return isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"


def _functions(source: Source, *names: str) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef) and node.name in names)
