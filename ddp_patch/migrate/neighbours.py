"""Files that a script imports from its folder, or from one above."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

_DEPTH = 3  # `from .misc import *` in `utils/__init__.py` is one more


def imports(nodes: Iterable[ast.AST], path: Path) -> Iterator[tuple[str, Path, str]]:
    """Give what statements of a file import from files near it: name here, file, name there (nothing: all of it)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                file = _near(path.parent, alias.name)
                if file is not None and (alias.asname or "." not in alias.name):
                    yield alias.asname or alias.name, file, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                below = ".".join(filter(None, (node.module, alias.name)))
                if node.level:
                    place = path.parent
                    for _ in range(node.level - 1):
                        place = place.parent
                    file, inner = _file(place, node.module or ""), _file(place, below)
                else:
                    file, inner = _near(path.parent, node.module or ""), _near(path.parent, below)
                if inner is not None:
                    yield alias.asname or alias.name, inner, ""
                elif file is not None:
                    yield alias.asname or alias.name, file, alias.name


def find_class(tree: ast.Module, folder: Path | None, name: str, depth: int = 0) -> ast.ClassDef | None:
    """Find the class of a name, here or in the files that are imported from a folder."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    if folder is None or depth > _DEPTH:
        return None
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        alias = next((a for a in node.names if (a.asname or a.name) == name or a.name == "*"), None)
        place = folder
        for _ in range(node.level - 1):
            place = place.parent
        path = _file(place, node.module or "") if alias is not None else None
        if alias is not None and path is not None and (other := _parsed(path)) is not None:
            wanted = name if alias.name == "*" else alias.name
            if (found := find_class(other, path.parent, wanted, depth + 1)) is not None:
                return found
    return None


def trains_beside(tree: ast.Module, folder: Path | None) -> bool:
    """Tell whether a script imports a file that trains, from its folder or from one above."""
    return any(".backward(" in text for text in texts_beside(tree, folder))


def texts_beside(tree: ast.Module, folder: Path | None) -> list[str]:
    """Give the files that a script imports from its folder, or from one above."""
    if folder is None:
        return []
    modules = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    top = folder.resolve()
    files = (_file(place, module) for place in [top, *top.parents[:_DEPTH]] for module in modules)
    return [path.read_text(encoding="utf-8", errors="replace") for path in files if path is not None]


def _near(folder: Path, module: str) -> Path | None:
    if not module:
        return None
    files = (_file(place, module) for place in [folder, *folder.parents[:_DEPTH]])
    return next((path for path in files if path is not None), None)


def _file(folder: Path, module: str) -> Path | None:
    base = folder.joinpath(*module.split(".")) if module else folder
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # it says so itself when it is migrated or run
        return None
