"""Module.load_state_dict: keys with and without DataParallel's ``module.`` load into either kind of model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..patch import Args, Kwargs, Patch
from ..session import Session

_PREFIX = "module."


def _load(session: Session, wrapped: Any, instance: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    def bind(state_dict: Any, *rest: Any, **options: Any) -> Any:
        return wrapped(fitted(instance, state_dict), *rest, **options)

    return bind(*args, **kwargs)


def fitted(module: nn.Module, state: Any) -> Any:
    """Give a state dict the keys of a module, if nothing but ``module.`` before every key keeps them apart."""
    if not isinstance(state, Mapping) or not state:
        return state
    expected, loaded = set(module.state_dict()), set(state)
    if expected & loaded or not all(isinstance(key, str) for key in loaded):
        return state
    if all(key.startswith(_PREFIX) for key in loaded):
        return _renamed(state, lambda key: key.removeprefix(_PREFIX), expected)
    if all(key.startswith(_PREFIX) for key in expected):
        return _renamed(state, lambda key: _PREFIX + key, expected)
    return state


def _renamed(state: Mapping[str, Any], name: Any, expected: set[str]) -> Any:
    renamed = OrderedDict((name(key), value) for key, value in state.items())
    if not expected & set(renamed):
        return state  # of another model: torch says which keys are missing
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        # torch keeps versions of modules by their prefix without the dot; the wrapper's own is "".
        renamed._metadata = {  # type: ignore[attr-defined]
            name(f"{key}.").removesuffix("."): value for key, value in metadata.items() if key or name("") == _PREFIX
        }
    return renamed


_EFFECT = "loads keys with and without `module.` into either kind of model"

PATCHES = (Patch("torch.nn", "Module.load_state_dict", _load, _EFFECT),)
