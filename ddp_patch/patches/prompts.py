"""What asks the user, or reads standard input: rank 0 does, every rank gets the answer."""

from __future__ import annotations

import os
from typing import Any

from ..patch import Args, Kwargs, Patch, Wrapper
from ..session import Session

_EFFECT = "rank 0 asks and reads, however long it takes; all get the answer"


def asked(what: str, *, may_be_awaited: bool = False) -> Wrapper:
    """A wrapper for what asks the user."""

    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        return session.console.prompts.ask(what, lambda: wrapped(*args, **kwargs), may_be_awaited=may_be_awaited)

    return call


def _read(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    return session.console.standard_input.read(wrapped, *args, **kwargs)


def _select(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if kwargs or not 3 <= len(args) <= 4:
        return wrapped(*args, **kwargs)  # which says what is wrong
    return session.console.standard_input.select(wrapped, args[:3], args[3:])


def _on_terminal(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        if not args:
            return wrapped(*args, **kwargs)  # which says what is missing
        return session.console.standard_input.call(what, wrapped, args[0], args[1:])

    return call


def _stands_for_stream(what: str) -> Wrapper:
    def call(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        descriptor = args[0] if args else kwargs.get("fd", 1)
        if descriptor not in _STREAMS or not session.rank_zero.in_lockstep():
            return wrapped(*args, **kwargs)
        if not session.owners.covers_calls("shutil"):  # a library draws by the clock
            return wrapped(*args, **kwargs)
        return session.rank_zero.call(what, lambda: wrapped(*args, **kwargs))

    return call


_STREAMS = (0, 1, 2)
_TERMINAL = ("tcgetattr", "tcsetattr", "tcflush") if os.name == "posix" else ()
_TOOLKIT = "prompt_toolkit.shortcuts.prompt"  # which IPython asks with

PATCHES = (
    Patch("builtins", "input", asked("input"), _EFFECT),
    Patch("os", "read", _read, "of standard input: as `input`; of a command's pipe: what rank 0 reads"),
    *(
        Patch(
            "os", name, _stands_for_stream(f"os.{name}"), "of descriptors 0 to 2, asked by the script: rank 0's answer"
        )
        for name in ("isatty", "get_terminal_size")
    ),
    Patch("select", "select", _select, "whether there is standard input, or a command has said anything, rank 0 tells"),
    *(
        Patch("termios", name, _on_terminal(f"termios.{name}"), "of standard input: rank 0's terminal")
        for name in _TERMINAL
    ),
    Patch("getpass", "getpass", asked("getpass.getpass"), _EFFECT),
    Patch(
        _TOOLKIT,
        "PromptSession.prompt",
        asked("a prompt", may_be_awaited=True),
        _EFFECT,
        when_imported=_TOOLKIT,
    ),
)
