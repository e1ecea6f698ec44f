"""The program that this process runs: by which command it was started, from where, and whether it was at all."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ..errors import LaunchError
from ..state import State

_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")  # of the interpreter's flags


def script_command(orig_argv: Sequence[str], executable: str) -> list[str]:
    """Rebuild the command line that started this interpreter, flags, ``-m`` and ``-c`` included.

    Raises:
        LaunchError: for a program that has no command line to repeat (standard input, an interactive prompt, a
            notebook's kernel).
    """
    arguments = list(orig_argv[1:])
    if any(Path(argument).stem == "ipykernel_launcher" for argument in arguments):
        raise LaunchError(
            "This is the kernel of a notebook, which cannot become several processes. Put what shall run on several "
            "into a function, and write: result = ddp_patch.launch(train, nproc=2), or @ddp_patch.enable(nproc=2) "
            "above it"
        )
    if parts(arguments)[1] in (None, "-") or is_typed():
        raise LaunchError(
            "This program was typed at a prompt or read from standard input, so it cannot be started again as "
            "several processes. Put what shall run on several into a function and write: ddp_patch.launch(train, "
            "nproc=2). Or save it as script.py and write: python -m ddp_patch --nproc 2 script.py"
        )
    return [executable, *arguments]


def parts(arguments: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Take apart what an interpreter is given.

    Args:
        arguments: of the interpreter, its flags first.

    Returns:
        its flags; ``-c``, ``-m``, ``-`` for standard input, or a script, None for a prompt; what comes after it, which
        begins with the command of ``-c`` and the module of ``-m``.
    """
    at = 0
    while at < len(arguments):
        flag = arguments[at]
        if flag == "-" or not flag.startswith("-"):
            return [*arguments[:at]], flag, [*arguments[at + 1 :]]
        at += 2 if flag in _WITH_VALUE else 1
        if flag.startswith("--"):
            continue
        for place, letter in enumerate(flag[1:], 2):
            if letter in "cm":
                flags = [*arguments[: at - 1], *([flag[: place - 1]] if place > 2 else [])]
                return flags, f"-{letter}", [*filter(None, [flag[place:]]), *arguments[at:]]
            if letter in "WX":  # the rest is its value
                at += place == len(flag) > 2
                break
    return [*arguments], None, []


def is_typed() -> bool:
    """Tell whether this program is typed in as it runs: in a notebook, or at IPython's prompt."""
    module = sys.modules.get("IPython.core.getipython")
    shell = None if module is None else module.get_ipython()
    if shell is None or hasattr(shell, "kernel"):
        return shell is not None
    # A script may have a shell too: a debugger's, or one that it embeds.
    is_script = hasattr(sys.modules["__main__"], "__file__")
    return not is_script and not getattr(getattr(shell, "parent", None), "code_to_run", "")


def decorates(frame: FrameType) -> bool:
    """Tell whether a frame is at the decorator of a function."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and any(place.lineno <= frame.f_lineno <= (place.end_lineno or 0) for place in node.decorator_list)
        for node in ast.walk(tree)
    )


def hash_seed() -> str | None:
    """What the interpreter found, which a script may have changed since."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:  # not on this system: trust the variable
        return os.environ.get("PYTHONHASHSEED")
    return next((entry[15:].decode() for entry in entries if entry.startswith(b"PYTHONHASHSEED=")), None)


def is_forked() -> bool:
    """Tell whether this process goes on from a fork: with its parent's hash, and without a program of its own."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return bool(int(fields[6]) & 0x40)  # PF_FORKNOEXEC of linux/sched.h
    except OSError:  # not on this system
        return False


def folder_of_start() -> str:
    """Where a relative path or ``-m`` finds this program, which may have changed its folder since."""
    if parts(sys.orig_argv[1:])[1] == "-m":
        return _folder_of_modules()
    path = getattr(sys.modules["__main__"], "__file__", None) or ""  # made absolute when the interpreter started
    script = os.path.normpath(parts(sys.orig_argv[1:])[1] or "")
    if os.path.isabs(path) and not os.path.isabs(script) and path.endswith(os.sep + script):
        return path[: -len(script) - 1] or os.sep
    return State.folder


def _folder_of_modules() -> str:
    """Where ``-m`` looks first: the interpreter notes it at its start, unless it is told to look elsewhere."""
    folder, search = State.folder, State.search
    if folder in search or not search or getattr(sys.flags, "safe_path", bool(sys.flags.isolated)):  # Python 3.11
        return folder
    return search[0] if os.path.isabs(search[0]) and os.path.isdir(search[0]) else folder
