"""Scripts that leave the training to other files: which files are migrated together, and how."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..source import read
from ..source.text import Text
from . import notebook
from .bindings import Bindings
from .dialects import DIALECTS
from .distribute import distribute, quiet
from .neighbours import imports
from .parts import joined, taken_apart
from .plain import is_distributed, plain
from .rewrite import is_done, others
from .rules import written
from .script import Script

_TRAINS = re.compile(r"\.backward\(")
_RANKED = re.compile(r"\bmaster_process\b|\baccelerator\b")
_BUILDS = re.compile(r"\bDataLoader\(|\.backward\(|\.parameters\(\)|\boptim\.")


@dataclass(frozen=True, eq=False)
class File:
    """A script, or a notebook."""

    path: Path
    text: Text
    is_notebook: bool

    @cached_property
    def code(self) -> str:
        """Give what is run, a notebook's cells as one text."""
        return notebook.joined(self.text.content) if self.is_notebook else self.text.content

    def encode(self, code: str) -> bytes:
        """Give the bytes of the file with other code."""
        return self.text.encode(notebook.taken_apart(self.text.content, code) if self.is_notebook else code)


class Project:
    """Files by what they import of each other."""

    def __init__(self, files: dict[Path, File], target: str) -> None:
        self._files = {path.absolute(): file for path, file in files.items()}
        self._target = target
        self._imports: dict[Path, list[Path]] = {}

    def groups(self) -> list[list[Path]]:
        """List which files are migrated together: what is imported first, the scripts last."""
        paths = list(self._files)
        used = {inner for path in paths for inner in self._imported(path)}
        found: list[list[Path]] = []
        for path in paths:
            text = self._code(path)
            if path in used or _TRAINS.search(text) or not _runs(text):
                continue
            reached = self._reached(path)
            trains = any(_TRAINS.search(self._code(inner)) for inner in reached)
            if not trains or any(others(self._code(file)) is not None for file in [*reached, path]):
                continue
            needed = [p for p in reached if any(_BUILDS.search(self._code(i)) for i in [p, *self._reached(p)])]
            shared = [group for group in found if set(group) & set(needed)]
            found = [group for group in found if group not in shared]
            found.append(list(dict.fromkeys([p for group in shared for p in group] + [*needed, path])))
        return found

    def files(self, group: list[Path]) -> list[File]:
        """Give the files at these paths."""
        return [self._files[path] for path in group]

    def rewrite(self, group: list[Path], per_device: bool = False) -> dict[File, str]:
        """Migrate files that train together; gives each one's text, which stays if one of them is migrated already."""
        if any(is_done(self._code(path), self._target) for path in group):
            return {self._files[path]: self._code(path) for path in group}
        used = {inner for path in group for inner in self._imported(path)}
        ordered = [p for p in group if p in used] + [p for p in group if p not in used]
        before = {p: self._code(p) for p in ordered}
        plained = {p: plain(text)[0] if is_distributed(text) else text for p, text in before.items()}
        text = joined([(path, path not in used, plained[path]) for path in ordered])
        after, _ = distribute(text, self._target, ordered[-1].name, per_device, ordered[-1].parent)
        return {self._files[path]: text for path, text in taken_apart(after, before).items()}

    def quiet(self, groups: list[list[Path]]) -> dict[File, str]:
        """Let one rank write in the modules that scripts which train call; gives the texts that change."""
        together = {path for group in groups for path in group}
        paths = list(self._files)
        starting = [p for p in paths if p in together or _TRAINS.search(self._code(p))]
        reached = dict.fromkeys(inner for path in starting for inner in self._reached(path))
        reads = any("torch.load(" in self._code(path) for path in {*starting, *reached})
        found = {}
        for path in reached:
            code = self._code(path)
            if path in together or _TRAINS.search(code) or _RANKED.search(code) or is_distributed(code):
                continue
            text = joined([(path, False, code)])
            after = taken_apart(quiet(text, self._target, reads, path.parent), {path: code})[path]
            if after != code:
                found[self._files[path]] = after
        return found

    def settle(self, texts: dict[File, str]) -> dict[File, str]:
        """Let ranks wait, in scripts that train and in what these import, for files that one of them writes."""
        texts, paths = dict(texts), {path: file for path, file in self._files.items() if file in texts}
        for path in paths:
            together = [inner for inner in (*self._reached(path), path) if inner in paths]
            before = {inner: texts[paths[inner]] for inner in together}
            changed = any(text != self._code(inner) for inner, text in before.items())
            imported = any(path in self._reached(other) for other in paths)
            if imported or not changed or not any(map(_TRAINS.search, before.values())):
                continue
            script = Script(joined([(inner, inner == path, text) for inner, text in before.items()]))
            written.apply(script, DIALECTS[self._target], Bindings(script, path.parent))
            texts |= {paths[inner]: text for inner, text in taken_apart(script.result(), before).items()}
        return texts

    def _code(self, path: Path) -> str:
        """Read a file, which need not be one that was named."""
        if path not in self._files:
            source = read(path)
            text = source.text if source.text is not None and not source.problems else Text("", "utf-8", False)
            self._files[path] = File(path, text, source.notebook)
        return self._files[path].code

    def _reached(self, path: Path) -> list[Path]:
        """List what a file imports, and what that imports, which comes first."""
        found: dict[Path, None] = {}
        seen = {path}

        def visit(file: Path) -> None:
            for inner in self._imported(file):
                if inner not in seen:
                    seen.add(inner)
                    visit(inner)
                    found[inner] = None

        visit(path)
        return list(found)

    def _imported(self, path: Path) -> list[Path]:
        if path not in self._imports:
            try:
                tree = ast.parse(self._code(path))
            except (SyntaxError, ValueError):  # it says so itself when it is migrated
                return self._imports.setdefault(path, [])
            nodes = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
            files = dict.fromkeys(file for _, file, _ in imports(nodes, path))
            self._imports[path] = [
                file for file in files if file != path and (file in self._files or path.parent in file.parents)
            ]
        return self._imports[path]


def _runs(text: str) -> bool:
    """Tell whether a file does something when it is run."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    try:
        body = Script(text).tree.body
    except (SyntaxError, ValueError):
        return False
    return any(
        not isinstance(n, kinds) and not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in body
    )
