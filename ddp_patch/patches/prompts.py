"""What asks the user: rank 0 asks, every rank gets the answer."""

from __future__ import annotations

from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_EFFECT = "rank 0 asks and reads, however long it takes; all get the answer"


def asked(what: str, *, may_be_awaited: bool = False) -> Wrapper:
    """A wrapper for what asks the user."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.console.prompts.ask(what, lambda: wrapped(*args, **kwargs), may_be_awaited=may_be_awaited)

    return call


_TOOLKIT = "prompt_toolkit.shortcuts.prompt"  # which IPython asks with

PATCHES = (
    Patch("builtins", "input", asked("input"), _EFFECT),
    Patch("getpass", "getpass", asked("getpass.getpass"), _EFFECT),
    Patch(
        _TOOLKIT,
        "PromptSession.prompt",
        asked("a prompt", may_be_awaited=True),
        _EFFECT,
        when_imported=_TOOLKIT,
    ),
)
