"""Read a script or a notebook: its text, its syntax trees, and what could not be read."""

from __future__ import annotations

import ast
import io
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from .notebooks import NotANotebook, cells, mask
from .problems import Problem
from .text import NotText, Text, decode

LARGEST = 2_000_000  # bytes; a script of 50,000 lines has about as many
_DEEPEST = 150  # nodes in one another; libcst takes minutes for an expression of thousands
_CALLS = 20  # of Python for each of them, in libcst's visitors and in ours
# Statements of Python 2 that are none of Python 3.
_PYTHON2 = re.compile(
    r"^\s*(print\s+[^(\s=.\[,:].*|print\s*>>.*|exec\s+[\"'\w].*|raise\s+[\w.]+\s*,.*|except\s+[\w.()\s,]+,\s*\w+\s*:.*)$"
    r"|\b0[0-7]+[lL]?\b|<>|\bur?'"
)
_ASYNC = re.compile(r"\basync\s*=")  # .cuda(async=True), as torch had it


@dataclass(frozen=True, eq=False)
class Part:
    """A script, or one code cell of a notebook."""

    module: cst.Module
    text: str  # what was parsed; in a cell, lines of IPython's own are masked (notebooks.unmask puts them back)
    cell: int | None = None  # from 1, counting code cells
    index: int | None = None  # in the notebook's list of cells

    @cached_property
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Where each node is: lines from 1, columns from 0. Worked out when first asked for."""
        # unsafe_skip_copy: the nodes of ``module`` themselves are the keys.
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines as Python counts them, without their ends."""
        return _lines(self.text)


@dataclass(frozen=True, eq=False)
class Source:
    """One file: what could be read of it, and what could not."""

    path: Path
    text: Text | None  # None where the file is not text
    parts: list[Part] = field(default_factory=list)  # one for a script, one for each code cell of a notebook
    problems: list[Problem] = field(default_factory=list)

    @property
    def notebook(self) -> bool:
        """The file is a notebook."""
        return self.path.suffix == ".ipynb"


def read(path: Path) -> Source:
    """Read one file. Whatever is wrong with it is in ``problems``; nothing is raised."""

    def refuse(kind: str, reason: str) -> Source:
        return Source(path, None, [], [Problem(str(path), 0, 0, kind, reason)])

    try:
        size = path.stat().st_size
        if size > LARGEST:
            return refuse("too-large", f"{size:,} bytes are more than the {LARGEST:,} of any script: exclude this file")
        data = path.read_bytes()
    except OSError as error:
        return refuse("unreadable", f"cannot be read: {error.strerror}")
    try:
        text = decode(data)
        if path.suffix != ".ipynb":
            return _source(path, text, [(None, None, text.content)])
        return _source(path, text, [(cell.number, cell.index, cell.text) for cell in cells(text.content)])
    except NotText as error:
        return refuse("not-text", str(error))
    except NotANotebook as error:
        return refuse("notebook", str(error))


def parse(content: str, path: str = "<text>", cell: int | None = None) -> cst.Module | Problem:
    """Parse Python, or say at which line and why not."""
    # Python's own limit of 1,000 calls is reached by expressions of 60 levels, which scripts have.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000 + _CALLS * _DEEPEST))
    fault = _fault(content)
    if fault is not None:
        line, column, kind, reason = fault
        return Problem(path, line, column, kind, reason, cell)
    try:
        return cst.parse_module(content)
    except cst.ParserSyntaxError as error:
        reason = "Python reads this line, but LibCST cannot parse it: exclude this file"
        return Problem(path, error.raw_line, error.raw_column + 1, "syntax", reason, cell)
    except RecursionError:
        return Problem(path, 0, 0, "syntax", "this is nested too deeply to be parsed: exclude this file", cell)


def _source(path: Path, text: Text, listed: list[tuple[int | None, int | None, str]]) -> Source:
    source = Source(path, text)
    for number, index, content in listed:
        if number is not None and isinstance(parse(content), Problem):
            content = mask(content)
        parsed = parse(content, str(path), number)
        if isinstance(parsed, Problem):
            source.problems.append(parsed)
        else:
            source.parts.append(Part(parsed, content, number, index))
    return source


def _fault(content: str) -> tuple[int, int, str, str] | None:
    """Find what keeps this from being Python 3, by Python's own parser, whose messages are known."""
    if content.isspace() or not content:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            deep = _deep(ast.parse(content))
    except SyntaxError as error:
        line = error.lineno or 0
        lines = _lines(content)
        said = lines[line - 1] if 0 < line <= len(lines) else ""
        if isinstance(error, TabError):
            return line, 0, "syntax", "tabs and spaces are mixed here, which Python 3 refuses. Write spaces"
        if _PYTHON2.search(said):
            reason = f"this is Python 2 ({said.strip()[:60]}). Convert the file to Python 3 first"
            return line, error.offset or 0, "python2", reason
        if _ASYNC.search(said):
            return line, error.offset or 0, "syntax", "async is a keyword since Python 3.7. Write non_blocking=True"
        version = ".".join(map(str, sys.version_info[:2]))
        return line, error.offset or 0, "syntax", f"syntax error for Python {version}: {error.msg}"
    except (RecursionError, MemoryError, ValueError) as error:  # ValueError: zero bytes, lone surrogates
        return 0, 0, "syntax", f"this cannot be parsed: {error}"
    if deep is not None:
        return (
            deep,
            0,
            "too-large",
            f"this is nested more than {_DEEPEST} levels deep (each elif is one): exclude this file",
        )
    return None


def _lines(content: str) -> list[str]:
    """Cut at line ends only: str.splitlines also does at form feeds and at U+2028, which are no ends to Python."""
    return [line.removesuffix("\n") for line in io.StringIO(content, newline=None)]


def _deep(tree: ast.AST) -> int | None:
    """Find a line whose code is nested deeper than libcst can take."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return None
    return next((node.lineno for node in level if hasattr(node, "lineno")), 0)
