"""The command line of ``verify``."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError

USAGE = """\
usage: python -m ddp_patch verify [options] (script.py | -m module) [args ...]
       python -m ddp_patch verify [options] --against old.py (new.py | -m module) [args ...]

Runs a script alone and on several ranks under ddp_patch, each in a copy of the working folder, and compares every
printed number, loss, gradient, weight and file. With --against, runs old.py alone and new.py on several ranks, by
torchrun, by accelerate launch if it uses Accelerate, or under ddp_patch if it has its line.

options:
  --nproc N[,N...]    numbers of ranks (default: 2)
  --steps N           end each run after N optimizer steps (without an optimizer: backwards)
  --float64           compute in float64 (a difference is tried in float64 anyway)
  --timeout SECONDS   time that one run may take (default: 600)
  --report DIR        write verify.md and verify.json there
  --json FILE         write the result as JSON; - for standard output
  -h, --help          show this and exit

exit code: 0 the same (also up to random draws for rows, or proven rounding), 1 a difference, 2 could not tell
"""


@dataclass(frozen=True)
class VerifyRequest:
    """What is asked."""

    script: Path
    args: tuple[str, ...]
    module: str = ""  # its name, where it is run as ``python -m package.train``
    against: Path | None = None
    nproc: tuple[int, ...] = (2,)
    steps: int | None = None
    float64: bool = False
    timeout: float = 600.0
    report: Path | None = None
    json: str | None = None


def parse(argv: Sequence[str]) -> VerifyRequest | None:
    """Read a command line; None if it asks for help.

    Raises:
        OptionError: for what cannot be understood or done.
    """
    rest = list(argv)
    options: dict[str, str] = {}
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m"):
        flag, has_value, value = rest.pop(0).partition("=")
        if flag in ("-h", "--help"):
            return None
        if flag == "--float64":
            options[flag] = "1"
            continue
        if flag not in ("--nproc", "--steps", "--timeout", "--report", "--json", "--against"):
            raise OptionError(f"unknown option {flag}. Write python -m ddp_patch verify --help for those there are.")
        if not has_value:
            if not rest:
                raise OptionError(f"{flag} needs a value.")
            value = rest.pop(0)
        options[flag] = value
    module = ""
    if rest[:1] == ["-m"]:
        if len(rest) < 2:
            raise OptionError("-m needs the name of a module. Write python -m ddp_patch verify -m package.train")
        module = rest[1]
        rest = [str(module_file(module)), *rest[2:]]
    if not rest:
        raise OptionError("no script to verify. Write python -m ddp_patch verify script.py")
    return VerifyRequest(
        script=script(rest[0]),
        args=tuple(rest[1:]),
        module=module,
        against=script(options["--against"]) if "--against" in options else None,
        nproc=_counts(options.get("--nproc", "2")),
        steps=int(_number("--steps", options["--steps"], whole=True)) if "--steps" in options else None,
        float64="--float64" in options,
        timeout=_number("--timeout", options.get("--timeout", "600"), whole=False),
        report=Path(options["--report"]) if "--report" in options else None,
        json=options.get("--json"),
    )


def script(name: str) -> Path:
    """Find a script.

    Raises:
        OptionError: if it is none.
    """
    path = Path(name)
    if path.suffix == ".ipynb":
        raise OptionError(
            f"{name} is a notebook, which python does not run. Write jupyter nbconvert --to script {name}, and verify "
            "what that makes."
        )
    if path.is_dir():
        raise OptionError(f"{name} is a folder. Name the script in it that trains, such as {path / 'train.py'}.")
    if not path.is_file():
        raise OptionError(f"can't open file {name!r}: there is no such script.")
    try:
        data = path.read_bytes()
        if b"\0" in data:
            raise OptionError(f"{name} is not text, so it is no script. Name the script that trains.")
        ast.parse(data, name)
    except OSError as error:
        raise OptionError(f"{name} cannot be read: {error.strerror}. Allow it, or name another script.") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path.name}:{line}" if line else path.name
        said = getattr(error, "msg", error)
        raise OptionError(f"{where}: {said}, so it does not run. Correct that line.") from None
    return path.resolve()


def module_file(name: str) -> Path:
    """Find what ``python -m`` would run from here, without importing the packages that it is in.

    Raises:
        OptionError: if there is none in the working folder or on PYTHONPATH.
    """
    parts = name.split(".")
    for folder in (Path.cwd(), *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))):
        base = folder.joinpath(*parts)
        for path in (base / "__main__.py", base.with_name(f"{base.name}.py")):
            if all(parts) and path.is_file():
                return path
        if all(parts) and (base / "__init__.py").is_file():
            raise OptionError(f"-m {name}: it is a package without __main__.py. Name the module in it that trains.")
    raise OptionError(
        f"-m {name}: there is no such module below this folder or one of PYTHONPATH. Write its name as "
        "for python -m, from the folder that its package is in."
    )


def _counts(value: str) -> tuple[int, ...]:
    counts = []
    for part in value.split(","):
        if not re.fullmatch(r"\d+", part.strip()) or int(part) < 1:
            raise OptionError(f"--nproc {value}: {part!r} is no number of ranks. Write --nproc 2, or --nproc 2,3.")
        if int(part) == 1:
            raise OptionError(
                f"--nproc {value}: on 1 rank ddp_patch does nothing, so there is nothing to compare. Write --nproc 2."
            )
        counts.append(int(part))
    return tuple(dict.fromkeys(counts))


def _number(flag: str, value: str, whole: bool) -> float:
    try:
        number = float(int(value)) if whole else float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 30 * 24 * 3600:
        kind = "a number of optimizer steps" if whole else "a number of seconds"
        raise OptionError(f"{flag} {value} is not {kind} above 0. Write {flag} {50 if whole else 600}.")
    return number


def uses(path: Path, *names: str) -> bool:
    """Tell whether a script imports one of these packages."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] in names for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in names:
            return True
    return False


def enables(path: Path) -> bool:
    """Tell whether a script has ddp_patch's line."""
    if not uses(path, "ddp_patch"):
        return False
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(ast.parse(path.read_bytes()))}
    return "enable" in names
