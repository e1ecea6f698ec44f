"""What one file of a program says, by Python's own parser, which takes a tenth of the time that the file's facts do."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .names import address
from .notebooks import NotANotebook, cells, mask
from .rank_tests import dotted, holding, is_rank_test
from .ranks import is_of_one_rank
from .reading import LARGEST
from .roles import Role, roles
from .text import NotText, decode

_BY_HAND = {Role.TENSOR_PARALLEL, Role.RPC}


@dataclass(frozen=True)
class CallSite:
    """One call in a file."""

    name: str  # the last part of what is called
    receiver: str  # what stands before it: ``self.solver``; nothing for a function
    is_guarded: bool  # under a test on the rank
    around: tuple[str, ...]  # the functions that it stands in, outermost first


@dataclass
class FileSummary:
    """What one file says."""

    imports: set[Path] = field(default_factory=set)
    stars: set[Path] = field(default_factory=set)  # those of which it imports all
    bound: dict[str, str] = field(default_factory=dict)  # names that its imports bind, to what they stand for
    foreign: set[str] = field(default_factory=set)  # those of them that are no files of this call
    roles: frozenset[Role] = frozenset()
    words: set[str] = field(default_factory=set)
    calls: list[CallSite] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)  # that it defines
    classes: dict[str, set[str]] = field(default_factory=dict)  # that it defines, to their methods
    made: dict[str, str] = field(default_factory=dict)  # variables, to what made them: ``solver`` to ``core.Solver``
    trains: bool = False
    uses_torch: bool = False
    seeds_by_rank: bool = False


def heard(place: Path, files: Collection[Path]) -> FileSummary:
    """Read what one of the files of a call says.

    Args:
        place: of the file.
        files: the places of all files of the call.
    """
    said = FileSummary()
    modules: set[str] = set()
    stars: set[str] = set()
    imported = said.bound
    calls: list[ast.Call] = []
    bases: list[ast.expr] = []
    for node, is_guarded, around in (entry for tree in _trees(place) for entry in _walk(tree)):
        kind = type(node)
        if isinstance(node, ast.Name):
            said.words.add(node.id)
        elif isinstance(node, ast.Attribute):
            said.words.add(node.attr)
        elif isinstance(node, ast.Call):
            calls.append(node)
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if receiver != "super":  # what a class above does
                said.calls.append(CallSite(name, receiver, is_guarded, around))
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
            stars.update([module] if node.names[0].name == "*" else ())
            imported.update({alias.asname or alias.name: f"{module}{joint}{alias.name}" for alias in node.names})
            said.words.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            said.made.update({dotted(target): dotted(node.value) for target in node.targets})
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            said.functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            bases += node.bases
            said.classes[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    called = {_full(dotted(node), imported) for node in (*(call.func for call in calls), *bases)}
    # What is imported to do it by hand distributes nothing by itself: who joins a group calls something.
    packages = {parent for name in modules for parent in _upwards(name)} - {"torch.distributed"}
    said.roles = roles(packages, called, ()) - _BY_HAND
    said.imports = {found for name in modules for found in _resolved(name, place, files)} - {place}
    said.stars = {found for name in stars for found in _resolved(name, place, files)} - {place}
    said.foreign = {name for name, full in imported.items() if not _is_known(full, place, files)}
    said.uses_torch = "torch" in packages
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
    rank_names = holding(tree)
    stack: list[tuple[ast.AST, bool, tuple[str, ...]]] = [(tree, False, ())]
    while stack:
        node, is_guarded, around = entry = stack.pop()
        yield entry
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_guarded = any(is_of_one_rank(dotted(each)) for each in node.decorator_list)
            around = (*around, node.name)
        tests = is_guarded or (isinstance(node, (ast.If, ast.IfExp)) and is_rank_test(node.test, rank_names))
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                left = tests
                for child in value:
                    if isinstance(child, ast.AST):
                        stack.append((child, left, around))
                        left = left or (isinstance(child, ast.If) and _leaves(child, rank_names))
            elif isinstance(value, ast.AST) and name not in ("ctx", "op"):
                stack.append((value, is_guarded if name == "test" else tests, around))


def _leaves(node: ast.If, rank_names: Collection[str]) -> bool:
    """``if rank != 0: return``: what comes behind it runs on some ranks."""
    leaves = isinstance(node.body[-1], (ast.Return, ast.Continue))
    return leaves and not node.orelse and is_rank_test(node.test, rank_names)


def _bound(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _full(name: str, imported: Mapping[str, str]) -> str:
    root, dot, rest = name.partition(".")
    return address(f"{imported.get(root, root)}{dot}{rest}")


def _is_known(full: str, place: Path, files: Collection[Path]) -> bool:
    """Tell whether an import is of a file of this call, or of something in one."""
    return full.startswith(".") or any(any(_resolved(part, place, files)) for part in _upwards(full))


def _upwards(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _resolved(name: str, place: Path, files: Collection[Path]) -> Iterator[Path]:
    """Find the files of this call that an import may mean: beside the file, or below a folder above it."""
    level = len(name) - len(name.lstrip("."))
    parts = name.lstrip(".").replace(".", "/")
    above = list(place.parents)
    for base in above[level - 1 : level] if level else above:
        found = [path for end in (".py", "/__init__.py") if (path := Path(f"{base}/{parts}{end}")) in files]
        yield from found
        if found:
            return
