"""All rules: one for each file of ``rules``, found by its ``RULE``."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable

from . import rules
from .rule import Rule


@functools.cache
def table() -> dict[str, Rule]:
    """Give every rule by its code, in order."""
    modules = sorted(module.name for module in pkgutil.iter_modules(rules.__path__))
    found = [importlib.import_module(f"{rules.__name__}.{name}").RULE for name in modules]
    return {rule.code: rule for rule in sorted(found, key=lambda rule: rule.code)}


def chosen(select: Iterable[str], ignore: Iterable[str]) -> set[str]:
    """Give the codes that are selected and not ignored. ``DDP1`` stands for all that begin with it.

    Raises:
        ValueError: for one that names no rule.
    """
    select, ignore = list(select), list(ignore)
    for prefix in (*select, *ignore):
        if not _matching([prefix]):
            raise ValueError(
                f"{prefix!r} names no rule. Write a code as --list shows them, or how some begin: DDP104, DDP2"
            )
    return (_matching(select) if select else {*table()}) - _matching(ignore)


def _matching(prefixes: Iterable[str]) -> set[str]:
    wanted = tuple(prefix.upper() for prefix in prefixes)
    return {code for code in table() if wanted and code.startswith(wanted) and "" not in wanted}
