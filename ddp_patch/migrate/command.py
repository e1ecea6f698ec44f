"""``python -m ddp_patch migrate``: rewrite scripts for ddp_patch, Accelerate or plain DDP."""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from ..source import find, read
from .line import LINE
from .project import File, Project
from .rewrite import left, others, rewrite
from .tree import lines_of
from .writing import refusal, write

_EPILOG = """\
exit code: 0 all done, or nothing to do; 3 something is left to you, at the lines with "# TODO(ddp):"; 2 a file could
not be read or written.
"""


def command(argv: Sequence[str]) -> int:
    """Run the command; gives its exit code."""
    options = _parser().parse_args(argv)
    found, problems = find(options.paths)
    for problem in problems:
        _say(str(problem))
    files = {path: file for path in found if (file := _readable(path)) is not None}
    failed, todos, changed = bool(problems) or len(files) < len(found), 0, 0
    texts, refused = _rewritten(files, options)
    for file in dict.fromkeys([*files.values(), *texts]):
        outcome = None if file in refused else _migrate(file, options, texts.get(file, file.code))
        if outcome is None:
            failed = True
            continue
        changed += outcome[0]
        todos += outcome[1]
    if options.to == "patch" and not changed and _nobody_starts(found):
        _say(f"no script that starts a training was found: put {LINE!r} on top of the one that you start")
        todos += 1
    verb = "changed" if options.write else "would change"
    _say(
        f"{verb} {changed} of {len({*files.values(), *texts})} files"
        + (f"; {todos} places are left to you" if todos else "")
    )
    return 2 if failed else 3 if todos else 0


def _nobody_starts(paths: Sequence[Path]) -> bool:
    """Tell whether something trains here, and nothing that is run has the line."""
    texts = [text.content for path in paths if (text := read(path).text) is not None]
    texts = [text for text in texts if others(text) is None]
    return any(".backward(" in text for text in texts) and not any("ddp_patch" in text for text in texts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ddp_patch migrate",
        description="Rewrite training scripts for ddp_patch, Accelerate or plain DDP.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="scripts, notebooks, and folders of them")
    parser.add_argument(
        "--to", choices=("patch", "accelerate", "ddp"), required=True, help="patch: ddp_patch's one line"
    )
    parser.add_argument(
        "--batch",
        choices=("global", "per-device"),
        default="global",
        help="what batch_size in the script becomes: global (default) is shared among the ranks, so the learning rate"
        " stays; per-device is each rank's, and the learning rate grows with their number",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--diff", action="store_true", help="show what would change (default)")
    how.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--force", action="store_true", help="write over files with changes that are not committed")
    return parser


def _readable(path: Path) -> File | None:
    source = read(path)
    for problem in source.problems:
        _say(str(problem))
    return None if source.problems or source.text is None else File(path, source.text, source.notebook)


def _rewritten(files: dict[Path, File], options: argparse.Namespace) -> tuple[dict[File, str], set[File]]:
    """Give what each file becomes, with those that scripts leave the training to, and which cannot be written."""
    alone = [file for file in files.values() if others(file.code) is None]
    found: dict[File, str] = {}
    refused: set[File] = set()
    if options.to == "patch":
        _each(alone, options, found, refused)
        return found, refused
    project = Project(files, options.to)
    groups = project.groups()
    for group in groups:
        try:
            texts = project.rewrite(group, options.batch == "per-device")
        except SyntaxError as error:
            refused |= _broken(project.files(group), error)
            continue
        changes = [file for file, text in texts.items() if text != file.code]
        if options.write and not options.force and any(refusal(file.path) for file in changes):
            for file in changes:
                _say(f"{file.path}: {refusal(file.path) or 'left as it is, with the file that it is migrated with'}")
            refused |= set(changes)
        found |= texts
    found |= project.quiet(groups)
    _each([file for file in alone if file not in found and file not in refused], options, found, refused)
    return project.settle(found), refused


def _each(files: list[File], options: argparse.Namespace, found: dict[File, str], refused: set[File]) -> None:
    """Migrate files by themselves."""
    for file in files:
        path = file.path
        try:
            found[file] = rewrite(file.code, options.to, path.name, options.batch == "per-device", path.parent)
        except SyntaxError as error:
            refused |= _broken([file], error)


def _broken(files: list[File], error: SyntaxError) -> set[File]:
    """Say of files that what was written is not Python."""
    for file in files:
        _say(f"{file.path}: left as it is: line {error.lineno} would not be Python any more. Please report it")
    return set(files)


def _migrate(file: File, options: argparse.Namespace, after: str) -> tuple[bool, int] | None:
    """Migrate one file; gives whether it changed, and how many places are left, or nothing if it cannot be written."""
    path, before = file.path, file.code
    if (title := others(before)) is not None:
        _say(f"{path}: distributed by {title}, so it is left alone. MIGRATION.md shows the way to the plain script")
        return False, 1
    try:
        ast.parse(after)
    except SyntaxError as error:
        _broken([file], error)
        return None
    places = left(after)
    if after != before:
        if options.write:
            reason = None if options.force else refusal(path)
            if reason is not None:
                _say(f"{path}: {reason}")
                return None
            kept = write(path, file.encode(after))
            _say(f"{path}: migrated" + (f", the original is {kept}" if kept else ""))
        else:
            _show(path, before, after)
    for line, reason in places:
        _say(f"{path}:{line}: TODO {reason}")
    return after != before, len(places)


def _show(path: Path, before: str, after: str) -> None:
    lines = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{path}", f"b/{path}")
    for line in lines:
        sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
