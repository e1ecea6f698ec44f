"""Functions that drop inside a kernel, where nothing that watches torch's operators sees what they draw."""

from __future__ import annotations

from typing import Any

# Where the rate stands (torch 2.13); of a recurrent layer, it is the only float, with whether it trains behind it.
DROPPING: dict[str, int | None] = {
    "scaled_dot_product_attention": 4,
    "multi_head_attention_forward": 10,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu")),
}
_NAME = "dropout_p"


def at_rest(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Give the arguments with which a function drops nothing; None if it drops nothing with these.

    Args:
        name: of the function.
        args: for it.
        kwargs: likewise.
    """
    at = DROPPING[name]
    if at is None:
        at = next((place for place, value in enumerate(args) if type(value) is float), len(args))
        drops = at + 1 < len(args) and args[at] > 0 and args[at + 1]
    else:
        drops = (args[at] if at < len(args) else kwargs.get(_NAME, 0.0)) > 0
    if not drops:
        return None
    return ((*args[:at], 0.0, *args[at + 1 :]), kwargs) if at < len(args) else (args, {**kwargs, _NAME: 0.0})
