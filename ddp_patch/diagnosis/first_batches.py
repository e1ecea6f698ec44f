"""Check that the ranks see the same data before they rely on it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from ..batch.world import World
from ..errors import LockstepError
from ..ledger import script_line
from ..structure import pieces, strided
from .samples import differing, first_samples

_ROUNDED = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


def compare_datasets(world: World, loader: Any, name: str, how: str) -> list[str]:
    """Compare the lengths of dataset and epoch, and what can be seen of its samples, when a loader is first iterated.

    Without a collective.

    Args:
        world: the ranks.
        loader: of the script.
        name: of it, alike on every rank.
        how: this rank would read it.

    Returns:
        how each rank would.

    Raises:
        LockstepError: on every rank, when they differ.
    """
    is_stream = isinstance(loader.dataset, IterableDataset)
    local = [
        dataset_row_count(loader.dataset),
        _batches_of(loader),
        {} if is_stream else first_samples(loader.dataset),
        how,
    ]
    gathered = world.exchange(f"the lengths of loader {name}", local)
    lengths, epochs = [entry[0] for entry in gathered], [entry[1] for entry in gathered]
    if len(set(lengths)) > 1:
        raise LockstepError(
            f"{script_line()}: the {type(loader.dataset).__name__} has a length of {_by_rank(lengths)}, so the "
            "ranks would work on different batches. Build it from the same files on every rank, or from a seed: "
            "torch.manual_seed(0)."
        )
    found = differing([entry[2] for entry in gathered])
    if found is not None:
        raise LockstepError(
            f"{script_line()}: {found[0]} holds {_by_rank(found[1])} for the same sample, so that samples would come "
            "twice or never. Drawn above the line without a seed? Move ddp_patch.enable() up, or write "
            "torch.manual_seed(0). Sort what the file system lists, and take results in the order in which they were "
            "asked for, as Executor.map gives them."
        )
    if len(set(epochs)) > 1:
        raise LockstepError(
            f"{script_line()}: the {type(loader.batch_sampler).__name__} has {_by_rank(epochs)} batches, so some ranks "
            "would wait for others that are done. Let its length depend on the data alone, not on the rank."
        )
    return [entry[3] for entry in gathered]


class FirstBatches:
    """Compares the first batch of every epoch of a loader, without a collective: a thread of the script's may draw it.

    In the first epoch before anything is fetched, later when the second batch is drawn, which costs no wait.
    """

    def __init__(self, world: World, loader: str) -> None:
        """Begin with the first epoch.

        Args:
            world: the ranks.
            loader: names it, alike on every rank.
        """
        self._world = world
        self._loader = loader
        self._epoch = 0
        self._has_begun = False
        self._posted: str | None = None

    def begin(self) -> None:
        """Begin the next epoch.

        Raises:
            LockstepError: on every rank, when the ranks differed in the last one.
        """
        self._finish()
        self._epoch += 1
        self._has_begun = False

    def drawn(self, indices: Any, is_last: bool = False) -> None:
        """Note what the sampler drew.

        Args:
            indices: of a batch.
            is_last: nothing more is drawn in this epoch.

        Raises:
            LockstepError: on every rank, when the first batches differ.
        """
        if self._has_begun:
            self._finish()
            return
        self._has_begun = True
        digest = hashlib.blake2b(repr(indices).encode(), digest_size=16).hexdigest()
        shown = repr(indices[:4] if isinstance(indices, list) else indices)
        self._posted = f"the first batch of loader {self._loader} in epoch {self._epoch}"
        self._world.leave(self._posted, (digest, shown))
        if self._epoch == 1 or is_last:
            self._finish()

    def _finish(self) -> None:
        if self._posted is None:
            return
        gathered = self._world.left(self._posted)
        self._posted = None
        if len({entry[0] for entry in gathered}) > 1:
            raise LockstepError(
                f"{script_line()}: the ranks' samplers drew different batches, beginning with "
                f"{_by_rank([entry[1] for entry in gathered])}. Draw the order from torch, numpy or random, whose "
                "generators agree on all ranks, not from the clock or the process id."
            )


def compare_parameters(world: World, module: torch.nn.Module, with_buffers: bool = True) -> None:
    """Compare the ranks' parameters and buffers before DDP relies on them. DDP's own broadcast would hide a difference.

    Where they differ by rounding, as what ``torch.linalg.lstsq`` gives does from call to call, rank 0's count, and of
    buffers in any case: one made by ``torch.empty`` holds what was in its memory, until the forward fills it.

    Raises:
        LockstepError: on every rank, naming the first that differs.
    """
    buffers = dict(module.named_buffers()) if with_buffers else {}
    state = {**dict(module.named_parameters()), **buffers}
    state = {name: value.detach() for name, value in state.items() if value.dtype != torch.bool}
    sums = [_sum(value) for value in state.values()]
    gathered = world.share([[_sum_of_bits(value) for value in state.values()], sums])
    for index, name in enumerate(state):
        bits, values = (
            [entry[part][index] if len(entry[part]) > index else None for entry in gathered] for part in (0, 1)
        )
        if len(set(bits)) == 1:
            continue
        # All ranks come here, if all have as many.
        told = f"{name!r} of {type(module).__name__}"
        if None in bits or not _taken_from_first(world, state[name], told, is_buffer=name in buffers):
            raise LockstepError(
                f"{script_line()}: {name!r} of {type(module).__name__} differs between ranks (its sum is "
                f"{_by_rank(values)}). Initialise it from torch, numpy or random, whose generators agree on all ranks."
            )


def _taken_from_first(world: World, local: torch.Tensor, name: str, is_buffer: bool) -> bool:
    """Take rank 0's values, if those of all ranks are as near to them as rounding leaves them, or no parameter.

    Args:
        world: the ranks, which all come here.
        local: a parameter or a buffer, which is written to.
        name: of it.
        is_buffer: not a parameter.
    """
    # Half precision rounds to what may be meant as well; an expanded buffer cannot be written to.
    fits = local.layout is torch.strided and 0 not in local.stride() and (is_buffer or local.dtype in _ROUNDED)
    shapes = world.share([fits and (str(local.dtype), *local.shape)])
    if not fits or shapes.count(shapes[0]) < world.size:
        return False
    first = world.broadcast(local.clone(memory_format=torch.contiguous_format))
    if is_buffer:
        local.copy_(first)
        world.ledger.note(f"the buffer {name} differed between ranks, so rank 0's was taken")
        return True
    largest = first.abs().max() if first.numel() else first.new_zeros(())
    is_near = bool(((local - first).abs() <= torch.finfo(local.dtype).eps ** 0.5 * largest).all())
    if not all(near for (near,) in world.share([is_near])):
        return False
    local.copy_(first)
    world.ledger.note(f"{name} differed between ranks by rounding, so rank 0's was taken")
    return True


def _sum_of_bits(tensor: torch.Tensor) -> int | str:
    """Sum a tensor's entries as integers: a sum of floats depends on a rank's threads and its processor's kernels."""
    if tensor.layout is not torch.strided:
        return " ".join(map(_digest, strided(tensor)))
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    # A sum in another type copies what it sums.
    return sum(int(piece.sum(dtype=torch.int64)) for piece in pieces(real.view(_INTEGERS[real.element_size()])))


def _sum(tensor: torch.Tensor) -> float:
    if tensor.layout is not torch.strided:
        return float(tensor.double().sum())
    return sum(float(piece.double().sum()) for piece in pieces(tensor))


def compare_dealt(world: World, tensors: dict[str, torch.Tensor]) -> None:
    """Compare tensors that every rank is to hold whole, before each keeps its own rows of them.

    Raises:
        LockstepError: on every rank, naming the first that differs.
    """
    gathered = world.share([{path: _digest(tensor) for path, tensor in tensors.items()}])
    differing = [path for path in tensors if len({entry[0].get(path) for entry in gathered}) > 1]
    shown = {path: repr(tensor.detach().flatten()[:3].tolist()) for path, tensor in tensors.items()}
    others = world.share([differing, shown]) if any(entry[0] != gathered[0][0] for entry in gathered) else []
    if others:
        path = next((path for entry in others for path in entry[0]), "")
        raise LockstepError(
            f"{script_line()}: ddp_patch.shard_batch(data): data{path} begins with "
            f"{_by_rank([entry[1].get(path) for entry in others])}, and differs between ranks, so the batch would be "
            "of no rank's values. Draw it from torch, numpy or random, whose generators agree on all ranks, and from "
            "the same files."
        )


def _digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()}"


def length(thing: Any) -> int | None:
    """``len(thing)``, or None for what has none."""
    try:
        return len(thing)
    except Exception:  # noqa: BLE001 — a stream, or the author's code
        return None


def dataset_row_count(dataset: Any) -> int | None:
    """Count a dataset's rows; None where one process would not: a stream may be read for it, or have no end."""
    return None if isinstance(dataset, IterableDataset) else length(dataset)


def _batches_of(loader: Any) -> int | None:
    """Count an epoch's batches, where to count them draws nothing."""
    batches = loader.batch_sampler
    countable = type(batches) is BatchSampler and type(batches.sampler).__module__.startswith(("torch.", "builtins"))
    return length(batches) if countable else None


def _by_rank(values: list[Any]) -> str:
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
