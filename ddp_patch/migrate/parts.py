"""Files that are migrated together stand in one text, each below a line of its own; and are taken apart again."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from .neighbours import imports

_MARK = "# %% file "
_FILE = re.compile(rf"^{_MARK}(script|module) (.*)\n", re.MULTILINE)


@dataclass(eq=False)
class Part:
    """One file of those that are migrated together; a file that is migrated alone is the only one."""

    path: Path | None
    is_script: bool  # it is run, and not imported
    first: int  # its first row, from 0
    unit: str  # it indents by
    body: list[ast.stmt] = field(default_factory=list)
    imports: dict[str, tuple[Part, str]] = field(default_factory=dict)  # name: of which part, what ("": all of it)

    @property
    def scope(self) -> Part | None:
        """What the names at its top belong to."""
        return None if self.path is None else self

    def refer(self, name: str) -> tuple[Part, str]:
        """Find the file that a name at the top belongs to, and its name there: ``losses.Triplet`` is its Triplet."""
        head, _, rest = name.partition(".")
        if head not in self.imports:
            return self, name
        part, real = self.imports[head]
        return part, ".".join(filter(None, (real, rest)))


def joined(files: list[tuple[Path, bool, str]]) -> str:
    """Join texts, those that are imported first; for each its path, and whether it is run."""
    return "".join(
        f"{_MARK}{'script' if is_script else 'module'} {path}\n" + text.replace("\r\n", "\n").rstrip("\n") + "\n"
        for path, is_script, text in files
    )


def taken_apart(text: str, before: dict[Path, str]) -> dict[Path, str]:
    """Give each file its part of a text, with the ends of lines that it had."""
    pieces = _FILE.split(text)
    found = {}
    for path, piece in zip(map(Path, pieces[2::3]), pieces[3::3], strict=True):
        old = before[path]
        end = old[len(old.rstrip("\r\n")) :].replace("\r\n", "\n")
        new = piece.rstrip("\n") + end
        found[path] = new.replace("\n", "\r\n") if old.count("\r\n") > old.count("\n") / 2 else new
    return found


def parts_of(lines: list[bytes], tree: ast.Module) -> list[Part]:
    """List the files in a text."""
    found: list[Part] = []
    for row, line in enumerate(lines):
        if line.startswith(_MARK.encode()) and (match := _FILE.match(line.decode())):
            found.append(Part(Path(match[2]), match[1] == "script", row + 1, ""))
    if not found:
        return [Part(None, True, 0, unit(lines), tree.body)]
    ends = [part.first - 1 for part in found[1:]] + [len(lines)]
    for part, end in zip(found, ends, strict=True):
        part.unit = unit(lines[part.first : end])
        part.body = [n for n in tree.body if part.first < n.lineno <= end]
    by_path = {part.path: part for part in found if part.path is not None}
    for part in found:
        assert part.path is not None
        for alias, path, name in imports(part.body, part.path):
            if (other := by_path.get(path)) is not None:
                names = _tops(other) if name == "*" else {alias: name}
                part.imports |= {local: (other, real) for local, real in names.items()}
    return found


def _tops(part: Part) -> dict[str, str]:
    """List what ``from part import *`` gives."""
    names = {n.name for n in part.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    for node in part.body:
        if isinstance(node, ast.Assign):
            names |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {name: name for name in names}


def unit(lines: list[bytes]) -> str:
    """Tell by what lines are indented."""
    indented = (line for line in lines if line[:1] in b" \t" and line.strip())
    first = next(indented, b"    ")
    return "\t" if first[:1] == b"\t" else "  " if len(first) - len(first.lstrip()) == 2 else "    "
