"""Attention and recurrent layers, whose samples lie in another dimension for each argument.

Dropout inside their kernels is drawn for a rank's rows, from its own generators.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..crossings import replicate, shard_argument
from ..forms import to_local
from ..layout import Layout
from ..tensor import BatchTensor, Rule
from ..world import World
from .arguments import bound
from .elementwise import common_layout, cutter
from .networks import aligned

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.scaled_dot_product_attention(q, k, v, mask)``; a mask may be global."""
    arguments = {**dict(zip(_ATTENTION, args, strict=False)), **kwargs}
    inputs, mask = [arguments.pop(name, None) for name in _ATTENTION[:3]], arguments.pop("attn_mask", None)
    batch = next((value for value in inputs if isinstance(value, BatchTensor)), None)
    if batch is None or len(args) > len(_ATTENTION):
        return NotImplemented
    layout, dims = batch._layout, batch.dim()
    if layout.dim >= dims - (3 if arguments.get("enable_gqa") else 2):
        return NotImplemented
    local = [aligned(value, layout) if value.dim() == dims else None for value in inputs]
    if any(value is None for value in local):
        return NotImplemented
    if mask is not None:
        if mask.dim() > dims or common_layout([batch, mask]) is None:
            return NotImplemented
        mask = cutter(layout, dims)(mask)
    with _draws(arguments.get("dropout_p", 0.0) != 0):
        return BatchTensor.from_local(func(*local, attn_mask=mask, **arguments), layout)


def multi_head_attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``F.multi_head_attention_forward``, of ``nn.MultiheadAttention`` and ``nn.Transformer*``."""
    arguments = bound(func, args, kwargs)
    inputs = {name: arguments[name] for name in ("query", "key", "value")}
    batch = next((value for value in inputs.values() if isinstance(value, BatchTensor)), None)
    if batch is None or batch._layout.dim != 1 or any(value.dim() != 3 for value in inputs.values()):
        return NotImplemented
    layout, mask, padding = batch._layout, arguments["attn_mask"], arguments["key_padding_mask"]
    # One object for one object: the body asks whether key is value to project them together.
    distinct = {id(value): aligned(value, layout) for value in inputs.values()}
    local = {name: distinct[id(value)] for name, value in inputs.items()}
    if padding is not None:
        local["key_padding_mask"] = aligned(padding, layout.at(0))
    if mask is not None and mask.dim() == 3:
        local["attn_mask"] = aligned(mask, layout.times(arguments["num_heads"], 0))
    if any(value is None for value in local.values()):
        return NotImplemented
    weights = {name: value for name, value in arguments.items() if isinstance(value, Tensor) and name not in local}
    if any(isinstance(value, BatchTensor) for value in weights.values()) or not {"static_k", "static_v"}.isdisjoint(
        weights
    ):
        return NotImplemented
    weights = {name: replicate(value) for name, value in weights.items()}
    with _draws(arguments["dropout_p"] != 0 and arguments["training"]):
        output, shares = func(**{**arguments, **local, **weights})
    return BatchTensor.from_local(output, layout), shares if shares is None else BatchTensor.from_local(
        shares, layout.at(0)
    )


def recurrent(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` on padded sequences."""
    # The forms for packed sequences have batch sizes or states where these have states or weights.
    several = func == torch.lstm
    if kwargs or len(args) != 9 or isinstance(args[1], (list, tuple)) != several:
        return NotImplemented
    batch, states, weights, _, layers, dropout, training, _, batch_first = args
    if not isinstance(weights, (list, tuple)) or batch.dim() != 3:
        return NotImplemented
    layout = _layout_of(batch, states if several else [states], 0 if batch_first else 1)
    if layout is None:
        return NotImplemented
    local_states = _states(states, layout.at(1), 3)
    if local_states is None or any(isinstance(weight, BatchTensor) for weight in weights):
        return NotImplemented
    flat = [replicate(weight) for weight in weights]
    with _draws(dropout != 0 and training and layers > 1):
        result = func(aligned(batch, layout), local_states if several else local_states[0], flat, *args[3:])
    dims = [layout, *[layout.at(1)] * len(local_states)]
    return tuple(BatchTensor.from_local(rows, at) for rows, at in zip(result, dims, strict=True))


def _layout_of(batch: Tensor, states: Any, dim: int) -> Layout | None:
    """How the rows of sequences are dealt, which every rank may have whole beside states of a batch."""
    if isinstance(batch, BatchTensor):
        return batch._layout if batch._layout.dim == dim else None
    state = next((state for state in states if isinstance(state, BatchTensor)), None)
    if state is None or state._layout.dim != 1 or batch.shape[dim] != state._layout.total:
        return None
    return state._layout.at(dim)


def cell(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``nn.LSTMCell``, ``nn.GRUCell`` and ``nn.RNNCell``: one step of ``[B, features]``."""
    if kwargs or len(args) < 4 or not isinstance(args[0], BatchTensor):
        return NotImplemented
    batch, weights = args[0], args[2:]
    if batch.dim() != 2 or batch._layout.dim != 0:
        return NotImplemented
    local_states = _states(args[1], batch._layout, 2)
    if local_states is None or any(isinstance(weight, BatchTensor) for weight in weights):
        return NotImplemented
    states = local_states if isinstance(args[1], (list, tuple)) else local_states[0]
    result = func(to_local(batch), states, *[w if w is None else replicate(w) for w in weights])
    if isinstance(result, Tensor):
        return BatchTensor.from_local(result, batch._layout)
    return tuple(BatchTensor.from_local(rows, batch._layout) for rows in result)


def _draws(any_number: bool) -> AbstractContextManager[None]:
    return World.get().local_draws() if any_number else nullcontext()


def _states(states: Any, layout: Layout, dims: int) -> list[Tensor] | None:
    several = states if isinstance(states, (list, tuple)) else [states]
    local = [_state(state, layout) if state.dim() == dims else None for state in several]
    return None if any(state is None for state in local) else [state for state in local if state is not None]


def _state(state: Tensor, layout: Layout) -> Tensor | None:
    if isinstance(state, BatchTensor) or state.dim() <= layout.dim or state.shape[layout.dim] != layout.total:
        return aligned(state, layout)
    return shard_argument(state, layout)


def rules() -> list[tuple[Any, Rule]]:
    """Layers of sequences and their rules."""
    return [
        (F.scaled_dot_product_attention, attention),
        (F.multi_head_attention_forward, multi_head_attention),
        *((func, recurrent) for func in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)),
        *((func, cell) for func in (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)),
    ]
