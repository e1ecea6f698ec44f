"""What asks the user: rank 0 asks, every rank gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt

from ..effects.prompts import Prompts
from ..patcher import Patch, Wrapper

_EFFECT = "rank 0 asks; all get the answer"


def patches(prompts: Prompts) -> list[Patch]:
    """Rows for what Python asks with."""
    return [
        Patch("builtins", "input", _asked("input", prompts), _EFFECT),
        Patch("getpass", "getpass", _asked("getpass.getpass", prompts), _EFFECT, everywhere=True),
    ]


def patch_when_imported(prompts: Prompts, apply: Callable[[list[Patch]], None]) -> None:
    """Take over prompt_toolkit, which IPython asks with, as soon as it is imported.

    Args:
        prompts: of the ranks.
        apply: applies patches, unless the session has ended.
    """
    ask = _asked("a prompt", prompts, may_be_awaited=True)
    rows = [Patch("prompt_toolkit.shortcuts.prompt", "PromptSession.prompt", ask, _EFFECT)]
    wrapt.register_post_import_hook(lambda module: apply(rows), "prompt_toolkit.shortcuts.prompt")


def _asked(what: str, prompts: Prompts, *, may_be_awaited: bool = False) -> Wrapper:
    def call(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return prompts.ask(what, lambda: wrapped(*args, **kwargs), may_be_awaited=may_be_awaited)

    return call
