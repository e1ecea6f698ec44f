"""torch.nn.utils.rnn and recurrent layers: packed sequences of a batch stay on the ranks that hold them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..batch import packed
from ..batch.crossings import shard_argument
from ..batch.forms import full_tensor, to_local
from ..batch.packed import PackedRows
from ..batch.tensor import BatchTensor
from ..patch import Args, Kwargs, Patch
from ..session import Session


def _pack(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> PackedSequence:
    if any(isinstance(value, BatchTensor) for value in (*args, *kwargs.values())):
        return packed.pack(*args, **kwargs)
    result: PackedSequence = wrapped(*args, **kwargs)
    return result


def _pad(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    sequence = args[0] if args else kwargs.get("sequence")
    if not isinstance(sequence, PackedRows):
        result: tuple[Tensor, Tensor] = wrapped(*args, **kwargs)
        return result
    total = args[3] if len(args) > 3 else kwargs.get("total_length")
    if session.world.observation is not None and total is None:
        session.world.observation.forbid_split("pad_packed_sequence pads to the longest sequence of the whole batch")
    return packed.pad(*args, **kwargs)


def _forward(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    def bind(input: Any, hx: Any = None) -> Any:
        if not isinstance(input, PackedRows):
            return wrapped(input, hx)
        weights = [weight for weight in instance._flat_weights if weight is not None]
        local = _local_states(hx, input)
        trained = [weight for weight in weights if weight.requires_grad]
        if local is NotImplemented or not all(map(session.world.has_averaged_gradient, trained)):
            return wrapped(input.whole(), _whole(hx))
        drops = instance.training and instance.dropout and instance.num_layers > 1
        with session.world.working_on_rows(wrapped), session.world.local_draws() if drops else nullcontext():
            output, states = wrapped(input.local_sequence, local)
        at = input.layout.at(1)
        several = isinstance(states, tuple)
        batches = [BatchTensor.from_local(state, at) for state in (states if several else (states,))]
        return PackedRows.of(output, input.order, input.layout), tuple(batches) if several else batches[0]

    return bind(*args, **kwargs)


def _local_states(states: Any, sequence: PackedRows) -> Any:
    if states is None:
        return None
    if isinstance(states, tuple):
        both = tuple(_local_states(state, sequence) for state in states)
        return NotImplemented if any(state is NotImplemented for state in both) else both
    layout = sequence.layout.at(1)
    if isinstance(states, BatchTensor):
        return to_local(states) if states._layout == layout else NotImplemented
    fits = isinstance(states, Tensor) and states.dim() == 3 and states.shape[1] == layout.total
    return shard_argument(states, layout) if fits else NotImplemented


def _whole(states: Any) -> Any:
    if isinstance(states, tuple):
        return tuple(map(_whole, states))
    return full_tensor(states) if isinstance(states, BatchTensor) else states


_WHERE, _RNN = "torch.nn.utils.rnn", "torch.nn.modules.rnn"

PATCHES = (
    Patch(_WHERE, "pack_padded_sequence", _pack, "packs this rank's rows"),
    Patch(_WHERE, "pad_packed_sequence", _pad, "pads to the longest sequence of the whole batch"),
    *(Patch(_RNN, f"{kind}.forward", _forward, "computes this rank's sequences") for kind in ("RNN", "GRU", "LSTM")),
)
