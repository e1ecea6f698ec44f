"""The command line: ``python -m ddp_patch check PATH...``."""

from __future__ import annotations

import argparse
import gc
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ..source import Problem, Programs, find
from .checking import Result, check
from .config import Config, ConfigError, config_for
from .explain import explained, listed
from .formats import FORMATS
from .rule import Rule
from .table import chosen, table

NOTHING, FOUND, FAILED = 0, 1, 2  # exit codes
_COLLECT = 50  # files between collections of garbage: a syntax tree is a million objects, none of which dies early


def command(argv: Sequence[str]) -> int:
    """Check scripts, notebooks and folders; give the exit code.

    Returns:
        0 where nothing was found, 1 where something was, 2 for a wrong command line or a file that cannot be checked.
    """
    parser = _parser()
    try:
        options = parser.parse_args(argv)
    except SystemExit as end:  # argparse has said why, or shown its help
        return FAILED if end.code else NOTHING
    try:
        if options.list:
            sys.stdout.write(listed())
            return NOTHING
        if options.explain:
            sys.stdout.write(explained(_rule(options.explain)))
            return NOTHING
        if not options.paths:
            raise ValueError("name a script, a notebook or a folder: python -m ddp_patch check train.py")
        result = _check(options)
    except (ValueError, ConfigError) as error:
        sys.stderr.write(f"python -m ddp_patch check: {error}\n")
        return FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may not have the script's letters
    sys.stdout.write(FORMATS[options.format](result))
    if result.problems:
        return FAILED
    return FOUND if result.findings else NOTHING


def _check(options: argparse.Namespace) -> Result:
    result = Result()
    select, ignore = _codes(options.select), _codes(options.ignore)
    chosen(select, ignore)
    collecting = gc.isenabled()
    gc.disable()
    try:
        files: dict[Path, set[str]] = {}
        for path in options.paths:
            config = Config() if options.no_config else config_for(Path(path))
            inside, problems = find([path], [*config.exclude, *options.exclude])
            result.problems += problems
            chosen(config.select, config.ignore)
            for file in inside:
                files[file] = chosen(select or config.select, [*ignore, *config.ignore, *config.ignored(file)])
        programs = Programs([*files])
        for file, wanted in files.items():
            try:
                check(file, wanted, result, programs.elsewhere(file))
            except Exception as error:  # noqa: BLE001 — a fault of ours, which the other files shall not suffer from
                result.problems.append(_crash(file, error))
            if result.files % _COLLECT == 0:
                gc.collect()
    finally:
        if collecting:
            gc.enable()
    return result


def _crash(file: Path, error: Exception) -> Problem:
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    reason = f"checking it failed ({said}), a fault of ddp_patch's that you may report. Write --exclude {file.name}"
    return Problem(str(file), 0, 0, "crashed", reason)


def _rule(code: str) -> Rule:
    rule = table().get(code.upper())
    if rule is None:
        raise ValueError(f"{code!r} is no rule. python -m ddp_patch check --list shows them all")
    return rule


def _codes(options: Sequence[str]) -> list[str]:
    return [code.strip() for item in options for code in item.split(",") if code.strip()]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: {message}. {self.prog} --help shows what there is\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m ddp_patch check",
        description="Say what in scripts and notebooks breaks under DDP (DDP1xx), and what ddp_patch cannot follow or "
        "is slow with (DDP2xx). Nothing is run or imported.",
        epilog="# noqa: DDP104 at the end of a line silences a rule there. [tool.ddp_patch.check] of pyproject.toml "
        "takes select, ignore, exclude and per-file-ignores. "
        "Exit code: 0 nothing found, 1 something found, 2 not checked.",
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="scripts, notebooks, and folders of them")
    parser.add_argument("--select", action="append", default=[], metavar="CODES", help="only these rules: DDP1,DDP204")
    parser.add_argument("--ignore", action="append", default=[], metavar="CODES", help="all rules but these")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="leave out what is called so")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="text", help="how to show findings (default: text)"
    )
    parser.add_argument("--no-config", action="store_true", help="do not look for a pyproject.toml")
    parser.add_argument("--explain", metavar="CODE", help="show a rule's page: bad, why, good")
    parser.add_argument("--list", action="store_true", help="show all rules")
    return parser
