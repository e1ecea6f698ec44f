"""What an option says, else a profile, else what is assumed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from .options import EXAMPLE
from .problems import LEAST, MOST, PlanError

_T = TypeVar("_T")


class Answers:
    """Options and a profile, and what nobody said, in words."""

    def __init__(self, options: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
        """Start with nothing assumed.

        Args:
            options: by their names, as text; None for those that were left out.
            profile: what ``profile.read`` gave; empty without one.
        """
        self.options, self.profile = options, profile
        self.assumed: list[str] = []

    def number(self, flag: str, read: Callable[[str], float], key: str = "", *, or_zero: bool = False) -> float | None:
        """Read a number.

        Args:
            flag: of its option.
            read: makes a number of text.
            key: of the profile, where the option is left out.
            or_zero: it may be 0.

        Raises:
            PlanError: for what is no number that it can be.
        """
        text = self.options[flag[2:].replace("-", "_")]
        if text is None:
            return self.profile.get(key)
        try:
            value = read(text)
        except PlanError as error:
            raise PlanError(f"{flag} {error}") from None
        if value < 0 or (value == 0 and not or_zero):
            raise PlanError(f"{flag} is {text}, and has to be {'0 or ' if or_zero else ''}above 0. {_like(flag)}")
        if value and not LEAST <= value <= MOST:
            raise PlanError(f"{flag} is {text}, and has to be between {LEAST:g} and {MOST:g}. {_like(flag)}")
        return value

    def whole(self, flag: str, value: float) -> int:
        """Refuse what is no whole number."""
        if value != int(value):
            raise PlanError(f"{flag} is {value:g}, and has to be a whole number. {_like(flag)}")
        return int(value)

    def name(self, flag: str, allowed: Collection[str], key: str = "") -> str | None:
        """Read a name, which has to be one of those that are allowed."""
        name: str | None = self.options[flag[2:].replace("-", "_")]
        if key:
            name = name or self.profile.get(key)
        if name is not None and name not in allowed:
            raise PlanError(f"{flag} {name!r} is not known. Write {flag} with one of: {', '.join(allowed)}")
        return name

    def or_else(self, value: _T | None, default: _T, words: str) -> _T:
        """Take a default where nobody said a value, and note that."""
        if value is None:
            self.assumed.append(words)
            return default
        return value


def _like(flag: str) -> str:
    found = re.search(rf"{flag} \S+", EXAMPLE)
    return f"Write for example {found[0]}" if found else f"python -m ddp_patch plan --help says what {flag} is"
