"""Command lines of ``profile`` and ``scale``: their options stand before the script, or right behind it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import OptionError
from ..options import meant
from ..verify.arguments import module_file, script

_CLOSE = 0.85  # of letters that agree: --rank and --ranks, but not --epochs
_LONGEST = 30 * 24 * 3600.0  # seconds


class Help(Exception):
    """Somebody asks for help."""


def split(
    name: str, argv: Sequence[str], valued: Collection[str], switches: Collection[str]
) -> tuple[dict[str, str], Path, str, tuple[str, ...]]:
    """Give the options, the script, its name as a module, and its own arguments.

    Behind the script its arguments begin at the first word that is no option of ours, or after ``--``.

    Args:
        name: of the command.
        argv: its command line.
        valued: options that take a value.
        switches: options that take none.

    Raises:
        OptionError: for what cannot be understood.
        Help: for ``--help``.
    """
    rest, values, flags = list(argv), {}, {*valued, *switches}

    def options() -> None:
        while rest and rest[0].partition("=")[0] in flags:
            flag, has_value, value = rest.pop(0).partition("=")
            if flag in switches:
                if has_value:
                    raise OptionError(f"{flag} takes no value. Write {flag}")
                values[flag] = "1"
                continue
            if not has_value:
                if not rest:
                    raise OptionError(f"{flag} needs a value. python -m ddp_patch {name} --help says which")
                value = rest.pop(0)
            values[flag] = value

    options()
    if rest[:1] in (["-h"], ["--help"]):
        raise Help
    if rest and rest[0].startswith("-") and rest[0] != "-m":
        flag = rest[0].partition("=")[0]
        raise OptionError(f"unknown option {flag}. {meant(flag, sorted(flags))}")
    is_module = rest[:1] == ["-m"]
    if len(rest) < 1 + is_module:
        raise OptionError(f"there is no script. Write python -m ddp_patch {name} script.py")
    module = rest[1] if is_module else ""
    path = script(str(module_file(module)) if is_module else rest[0])
    rest = rest[1 + is_module :]
    options()
    _refuse_misspelt(rest, flags, path)
    return values, path, module, tuple(rest[1:] if rest[:1] == ["--"] else rest)


def _refuse_misspelt(rest: Sequence[str], flags: Collection[str], path: Path) -> None:
    flag = rest[0].partition("=")[0] if rest else ""
    close = difflib.get_close_matches(flag, sorted(flags), 1, _CLOSE) if flag.startswith("--") and flag != "--" else []
    if close:
        raise OptionError(
            f"{flag} behind {path.name} is no option of ours. Did you mean {close[0]!r}? If it is the script's own, "
            f"write -- before it: {path.name} -- {flag}"
        )


def whole(flag: str, text: str, example: int, least: int = 1) -> int:
    """Read a whole number.

    Raises:
        OptionError: for another one.
    """
    if not re.fullmatch(r"\d{1,6}", text.strip()) or int(text) < least:
        raise OptionError(f"{flag} {text} is no whole number of at least {least}. Write {flag} {example}")
    return int(text)


def seconds(flag: str, text: str) -> float:
    """Read seconds.

    Raises:
        OptionError: for what are none.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < _LONGEST:
        raise OptionError(f"{flag} {text} is no number of seconds above 0. Write {flag} 600")
    return number


def ranks(flag: str, text: str, accelerators: int) -> tuple[int, ...]:
    """Read numbers of ranks, in their order.

    Args:
        flag: of the option.
        text: such as ``1,2,4``.
        accelerators: that are visible; 0 on a host without any.

    Raises:
        OptionError: for what are none, or more than there are accelerators.
    """
    found = set()
    for part in text.split(","):
        if not re.fullmatch(r"\d{1,5}", part.strip()) or int(part) < 1:
            raise OptionError(f"{flag} {text}: {part!r} is no number of ranks from 1 to 99,999. Write {flag} 2")
        found.add(int(part))
    if accelerators and max(found) > accelerators:
        raise OptionError(
            f"{flag} {text}, and {accelerators} accelerators are visible: a rank needs one of its own. "
            f"Write {flag} {accelerators}, or make more visible (CUDA_VISIBLE_DEVICES)"
        )
    return tuple(sorted(found))


def folder(flag: str, text: str) -> Path:
    """Read a folder to write to, before time is spent on what will be written.

    Raises:
        OptionError: if it cannot be written to.
    """
    place = Path(text)
    above = next(it for it in (place, *place.resolve().parents) if it.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OptionError(f"{flag} {text} cannot be written to. Name another folder")
    return place


def needs_matplotlib(name: str, instead: str) -> None:
    """Refuse before anything is run.

    Args:
        name: of the command.
        instead: the option without which nothing is drawn.

    Raises:
        OptionError: if matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 — an extra
    except ImportError:
        raise OptionError(
            f"{name} draws with matplotlib, which is not installed. Write pip install 'ddp_patch[plot]', or {instead}"
        ) from None
