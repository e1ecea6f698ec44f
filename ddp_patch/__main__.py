"""Run an untouched script: ``python -m ddp_patch [options] script.py [args]``, or ``-m module``; or a command."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NoReturn

from . import api
from .errors import DdpPatchError
from .options import Options, format_value, meant, parse, variable
from .state import State
from .usage import usage

USAGE = """\
usage: python -m ddp_patch [options] (script.py | -m module) [args ...]
       python -m ddp_patch (check | env | migrate | patches | plan | profile | scale | trace | verify) ...

Runs a script on several processes as if it were one. The script needs no change.

commands (each with a --help of its own):
  check               what in a script breaks under DDP, and what ddp_patch cannot follow
  env                 who started this process, as which rank, where, and what was set by whom
  migrate             rewrite a script for ddp_patch, Accelerate or plain DDP
  patches             what ddp_patch patches, and what becomes of it
  plan                what 2 to 1,024 ranks will bring: time, memory, learning rate
  profile             where the time of a script's steps goes, and what to change
  scale               what a script's step takes on 1, 2, 4 ranks, measured here
  trace               what the ranks of a run recorded, side by side
  verify              run a script alone and on several ranks, and compare all numbers

options (each also as a variable, for instance DDP_PATCH_NPROC):
{options}  -h, --help                show this and exit
"""
COMMANDS = (
    "check",
    "env",
    "migrate",
    "patches",
    "plan",
    "profile",
    "scale",
    "trace",
    "verify",
)  # packages of ours; each has ``command(argv)``, which gives the exit code
Load = Callable[[], tuple[CodeType, types.ModuleType]]


@dataclasses.dataclass(frozen=True)
class Command:
    """A parsed command line."""

    options: dict[str, Any]
    module: bool  # target is a module name, not a path
    target: str
    args: list[str]


def parse_command(argv: Sequence[str]) -> Command:
    """Split a command line into options, the script or module, and its own arguments.

    Raises:
        OptionError: for a value that cannot be used.
        SystemExit: 0 for ``--help``, 2 for anything that cannot be understood.
    """
    rest = list(argv)
    options: dict[str, Any] = {}
    names = {f"--{f.name.replace('_', '-')}": f for f in dataclasses.fields(Options)}
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        flag, _, value = rest.pop(0).partition("=")
        if flag in ("-h", "--help"):
            sys.stdout.write(USAGE.format(options=usage()))
            raise SystemExit(0)
        negated = flag.startswith("--no-") and f"--{flag[5:]}" in names
        field = names.get(f"--{flag[5:]}" if negated else flag)
        if field is None:
            _refuse(f"unknown option {flag}. {meant(flag, list(names))}")
        if field.type == "bool" or (field.type == "bool | str" and not value):
            options[field.name] = not negated
            continue
        if not value:
            if not rest:
                _refuse(f"{flag} needs a value")
            value = rest.pop(0)
        options[field.name] = parse(field.name, value, source=flag)
    module = rest[:1] == ["-m"]
    rest = rest[1:] if module else rest
    if not rest:
        _refuse("no script to run")
    return Command(options, module, rest[0], rest[1:])


def main(argv: Sequence[str]) -> None:
    """Enable ddp_patch and run the script as ``python`` would; or run a command."""
    if argv and argv[0] in COMMANDS:
        raise SystemExit(_run_command(argv[0], argv[1:]))
    try:
        command = parse_command(argv)
        load, State.script = (_module_loader if command.module else _script_loader)(command.target)
        # As variables, so that an enable() inside the script resolves to the same options.
        os.environ.update({variable(name): format_value(value) for name, value in command.options.items()})
        api.enable(**command.options)
        State.by_command = True
    except DdpPatchError as error:
        _refuse(str(error))
    _say_misplaced(command)
    code, module = load()
    sys.argv = [module.__dict__["__file__"] if command.module else command.target, *command.args]
    sys.modules["__main__"] = module
    _hide_own_frames()
    exec(code, vars(module))


def _say_misplaced(command: Command) -> None:
    """Say so where one process runs, and the script is given what looks like our number of processes."""
    has_nproc = any(argument.partition("=")[0] == "--nproc" for argument in command.args)
    if has_nproc and not command.options and api.world_size() == 1:
        target = f"-m {command.target}" if command.module else command.target
        sys.stderr.write(
            f"python -m ddp_patch: --nproc stands after {target}, which gets it. For ddp_patch, write it before.\n"
        )


def _run_command(name: str, argv: Sequence[str]) -> int:
    try:
        code = _command(name)(argv)
        sys.stdout.flush()
    except BrokenPipeError:  # as behind `| head`; Python's documentation of SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _command(name: str) -> Callable[[Sequence[str]], int]:
    try:
        return importlib.import_module(f".{name}", __package__).command  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ddp_patch"):
            raise
        _refuse(f"{name} needs {error.name}. Write pip install 'ddp_patch[migrate]'")


def _script_loader(path: str) -> tuple[Load, str | None]:
    finder = pkgutil.get_importer(os.path.abspath(path))
    if finder is not None or Path(path).is_dir():
        return _folder_loader(path, finder)
    if not Path(path).is_file():
        _refuse(f"can't open file {path!r}: there is no such script")

    def load() -> tuple[CodeType, types.ModuleType]:
        module = types.ModuleType("__main__")
        name = os.path.abspath(path)
        loader = SourceFileLoader("__main__", name)
        vars(module).update(__file__=name, __builtins__=builtins, __loader__=loader, __cached__=None)
        sys.path[0] = str(Path(path).resolve().parent)
        # Not loader.get_code: it would write a .pyc beside the script, which python does not.
        return compile(Path(path).read_bytes(), name, "exec", dont_inherit=True), module

    return load, path


def _module_loader(name: str) -> tuple[Load, str | None]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.loader is None:
        _refuse(f"No module named {name}")
    return _spec_loader(spec), spec.origin


def _folder_loader(path: str, finder: Any) -> tuple[Load, str | None]:
    """Find what ``python path`` runs in a folder or a zip file."""
    spec = finder and finder.find_spec("__main__")
    if spec is None or spec.loader is None:
        _refuse(f"can't find '__main__' module in {path!r}")
    load = _spec_loader(spec)

    def load_from() -> tuple[CodeType, types.ModuleType]:
        sys.path[0] = os.path.abspath(path)
        return load()

    return load_from, spec.origin


def _spec_loader(spec: ModuleSpec) -> Load:
    def load() -> tuple[CodeType, types.ModuleType]:
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        module = types.ModuleType("__main__")
        vars(module).update(
            __file__=spec.origin,
            __builtins__=builtins,
            __loader__=spec.loader,
            __cached__=spec.cached,
            __package__=spec.parent,
            __spec__=spec,
        )
        return code, module

    return load


def _hide_own_frames() -> None:
    """Show tracebacks as plain python does: beginning in the script."""
    previous = sys.excepthook
    hidden = (__file__, "<frozen runpy>", runpy.__file__)

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename in hidden:
            traceback = traceback.tb_next
        previous(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = hook


def _refuse(reason: str) -> NoReturn:
    sys.stderr.write(f"python -m ddp_patch: {reason}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
