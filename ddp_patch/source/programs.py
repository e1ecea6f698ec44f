"""What the other files of a program say: ``main.py`` calls ``set_epoch`` for the sampler that ``data.py`` makes.

A program is a script and all files of the same call that it imports, in turn. Files are read by Python's own parser
here, which takes a tenth of the time that their facts do.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .guards import is_of_one_rank, names_rank
from .notebooks import NotANotebook, cells, mask
from .reading import LARGEST
from .roles import Role, roles
from .text import NotText, decode

_BY_HAND = {Role.TENSOR_PARALLEL, Role.RPC}
_ROUNDS = 4  # calls of functions in functions that are called under a test on the rank


@dataclass(frozen=True)
class Elsewhere:
    """What the other files of the programs that a file is part of say, all together."""

    roles: frozenset[Role] = frozenset()
    words: frozenset[str] = frozenset()  # names, attributes, keywords, and strings that could be one
    guarded: frozenset[str] = frozenset()  # functions and classes that are called there under a test on the rank only
    trains: bool = False  # one that imports this file runs a backward
    seeds_by_rank: bool = False


@dataclass
class _Said:
    """What one file says."""

    imports: set[Path] = field(default_factory=set)
    roles: frozenset[Role] = frozenset()
    words: set[str] = field(default_factory=set)
    calls: list[tuple[str, bool, tuple[str, ...]]] = field(default_factory=list)  # name, is guarded, functions around
    trains: bool = False
    seeds_by_rank: bool = False


class Programs:
    """Answers ``elsewhere(path)`` for the files of one call."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Read all files, if there are several: one has nothing else to hear of."""
        self._places = {file.resolve(): file for file in files}
        self._said = {place: _read(place, self._places.keys()) for place in self._places} if len(files) > 1 else {}

    def elsewhere(self, path: Path) -> Elsewhere:
        """Tell what the other files of this file's programs say."""
        place = path.resolve()
        if place not in self._said:
            return Elsewhere()
        above = self._reached(place, self._importers)
        around = {other for top in (place, *above) for other in self._reached(top, self._imports)} | above
        others = [self._said[other] for other in around - {place}]
        calls = [call for said in others for call in said.calls]
        importers = [self._said[other] for other in self._importers.get(place, ())]
        return Elsewhere(
            frozenset().union(*(said.roles for said in others)),
            frozenset().union(*(said.words for said in others)),
            _guarded(calls),
            any(said.trains for said in importers),
            any(said.seeds_by_rank for said in others),
        )

    @cached_property
    def _imports(self) -> dict[Path, set[Path]]:
        return {place: said.imports for place, said in self._said.items()}

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        found: dict[Path, set[Path]] = defaultdict(set)
        for place, said in self._said.items():
            for imported in said.imports:
                found[imported].add(place)
        return found

    @staticmethod
    def _reached(start: Path, following: dict[Path, set[Path]]) -> set[Path]:
        found: set[Path] = set()
        left = [start]
        while left:
            new = following.get(left.pop(), set()) - found
            found |= new
            left.extend(new)
        return found


def _guarded(calls: Iterable[tuple[str, bool, tuple[str, ...]]]) -> frozenset[str]:
    """Name what is called under a test on the rank only, there or where the function around is called."""
    by_name: dict[str, list[tuple[bool, tuple[str, ...]]]] = defaultdict(list)
    for name, is_guarded, around in calls:
        by_name[name].append((is_guarded, around))
    found: set[str] = set()
    for _ in range(_ROUNDS):
        before = len(found)
        found |= {
            name
            for name, made in by_name.items()
            if all(is_guarded or found.intersection(around) for is_guarded, around in made)
        }
        if len(found) == before:
            break
    return frozenset(found)


def _read(place: Path, known: Collection[Path]) -> _Said:
    said = _Said()
    modules: set[str] = set()
    called: set[str] = set()
    imported: dict[str, str] = {}
    calls: list[ast.Call] = []
    for node, is_guarded, around in (entry for tree in _trees(place) for entry in _walk(tree)):
        kind = type(node)
        if isinstance(node, ast.Name):
            said.words.add(node.id)
        elif isinstance(node, ast.Attribute):
            said.words.add(node.attr)
        elif isinstance(node, ast.Call):
            calls.append(node)
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            said.calls.append((name, is_guarded, around))
            said.trains |= name == "backward" and name not in around
            said.seeds_by_rank |= "seed" in name.lower() and "rank" in "".join(map(ast.dump, node.args)).lower()
        elif isinstance(node, ast.keyword):
            said.words.add(node.arg or "")
        elif kind is ast.Constant and isinstance(node.value, str) and node.value.isidentifier():  # type: ignore[attr-defined]
            said.words.add(node.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
            imported.update({alias.asname or alias.name.partition(".")[0]: _bound(alias) for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            joint = "" if module.endswith(".") else "."
            modules.update([module, *(f"{module}{joint}{alias.name}" for alias in node.names)])
            imported.update({alias.asname or alias.name: f"{module}{joint}{alias.name}" for alias in node.names})
            said.words.update(alias.name for alias in node.names)
    for call in calls:
        root, dot, rest = _dotted(call.func).partition(".")
        called.add(f"{imported.get(root, root)}{dot}{rest}")
    # What is imported to do it by hand distributes nothing by itself: who joins a group calls something.
    packages = {parent for name in modules for parent in _upwards(name)} - {"torch.distributed"}
    said.roles = roles(packages, called, ()) - _BY_HAND
    said.imports = {found for name in modules for found in _resolved(name, place, known)} - {place}
    return said


def _trees(place: Path) -> Iterator[ast.Module]:
    try:
        if place.stat().st_size > LARGEST:
            return
        text = decode(place.read_bytes()).content
        texts = [text] if place.suffix != ".ipynb" else [mask(cell.text) for cell in cells(text)]
    except (OSError, NotText, NotANotebook):
        return  # said where the file itself is read
    for each in texts:
        try:
            yield ast.parse(each)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool, tuple[str, ...]]]:
    """Go through the nodes of a file: whether each is under a test on the rank, and in which functions."""
    stack: list[tuple[ast.AST, bool, tuple[str, ...]]] = [(tree, False, ())]
    while stack:
        node, is_guarded, around = entry = stack.pop()
        yield entry
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_guarded = any(is_of_one_rank(_dotted(each)) for each in node.decorator_list)
            around = (*around, node.name)
        tests = is_guarded or (isinstance(node, (ast.If, ast.IfExp)) and _is_rank_test(node.test))
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                left = tests
                for child in value:
                    if isinstance(child, ast.AST):
                        stack.append((child, left, around))
                        left = left or (isinstance(child, ast.If) and _leaves(child))
            elif isinstance(value, ast.AST) and name not in ("ctx", "op"):
                stack.append((value, is_guarded if name == "test" else tests, around))


def _leaves(node: ast.If) -> bool:
    """``if rank != 0: return``: what comes behind it runs on some ranks."""
    leaves = isinstance(node.body[-1], (ast.Return, ast.Continue))
    return leaves and not node.orelse and _is_rank_test(node.test)


def _is_rank_test(test: ast.expr) -> bool:
    return any(isinstance(part, (ast.Name, ast.Attribute)) and names_rank(_dotted(part)) for part in ast.walk(test))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _bound(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _upwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _resolved(name: str, place: Path, known: Collection[Path]) -> Iterator[Path]:
    """Find the files of this call that an import may mean: beside the file, or below a folder above it."""
    level = len(name) - len(name.lstrip("."))
    parts = name.lstrip(".").replace(".", "/")
    above = list(place.parents)
    for base in above[level - 1 : level] if level else above:
        found = [path for end in (".py", "/__init__.py") if (path := Path(f"{base}/{parts}{end}")) in known]
        yield from found
        if found:
            return
