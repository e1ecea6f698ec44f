"""``python -m ddp_patch patches``: every patched name, and what becomes of it."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from ..gradients import zeroing
from ..patch import Patch
from ..replica import discovery

_PRIVATE = ("_C", "_hl")
_CUDA = {"on_accelerators": "on a host with CUDA", "without_cuda": "on a host without CUDA"}


def command(argv: Sequence[str]) -> int:
    """List the rows; 1 where a text is given that none of them has."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_patch patches",
        description="What ddp_patch patches, and what becomes of it on several ranks.",
    )
    parser.add_argument("text", nargs="?", default="", help="only names with this in them, such as torch.save")
    parser.add_argument("--markdown", action="store_true", help="as the tables of docs/what-is-patched.md")
    options = parser.parse_args(argv)
    found = [(subject, lines) for subject in subjects() if (lines := list(_lines(subject, options.text)))]
    for subject, lines in found:
        title = heading(subject)
        sys.stdout.write(
            f"### {title}\n\n| name | under ddp_patch |\n|---|---|\n" if options.markdown else f"{title}\n"
        )
        for names, effect in lines:
            shown = ", ".join(f"`{name}`" for name in names) if options.markdown else ", ".join(names)
            sys.stdout.write(f"| {shown} | {effect} |\n" if options.markdown else f"  {shown}: {effect}\n")
        sys.stdout.write("\n")
    if not found:
        sys.stderr.write(f"python -m ddp_patch patches: no patched name has {options.text!r} in it\n")
    return 0 if found else 1


def subjects() -> Sequence[ModuleType]:
    """The files, each with its table."""
    from . import SUBJECTS  # noqa: PLC0415 — which imports this

    return (*SUBJECTS, discovery, zeroing)


def heading(subject: ModuleType) -> str:
    """The first sentence of a file's docstring."""
    said = (subject.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip().rstrip(".")
    where = _CUDA.get(subject.__name__.rpartition(".")[2])
    return f"{said} ({where})" if where else said


def public(patch: Patch) -> str:
    """The name that a script's author would write: of all that lead to the target, the shortest without underscores."""
    places = [
        (patch.module, patch.target),
        *((module, path) for module, _, path in (a.partition(":") for a in patch.also)),
    ]
    places += [(above, patch.target) for above in _above(patch.module) if _leads(above, patch)]
    names = [path if module == "builtins" else f"{module}.{path}" for module, path in places]
    return min(names, key=lambda name: (any(part in _PRIVATE for part in name.split(".")), len(name)))


def _lines(subject: ModuleType, text: str) -> Iterable[tuple[list[str], str]]:
    """Rows of one effect, together: ``torch.Tensor.to``, ``.cuda``."""
    by_effect: dict[str, list[str]] = {}
    for patch in subject.PATCHES:
        if text in patch.name or text in public(patch):
            by_effect.setdefault(patch.effect, []).append(public(patch))
    for effect, names in by_effect.items():
        short, last = [], ""
        for name in dict.fromkeys(names):
            owner, _, attribute = name.rpartition(".")
            short.append(f".{attribute}" if owner and owner == last else name)
            last = owner
        yield short, effect


def _above(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _leads(above: str, patch: Patch) -> bool:
    """Tell whether a package gives the same object as the module where it is defined."""
    if patch.when_imported:
        return False
    first = patch.target.partition(".")[0]
    objects = [getattr(importlib.import_module(module), first, None) for module in (above, patch.module)]
    return objects[0] is not None and objects[0] is objects[1]
