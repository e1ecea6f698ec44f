"""Half-precision gradients whose rounding errors are not lost, but sent with the next ones.

Each rank adds what it rounded off last time to its gradients, and rounds. Of these every rank sums one part over the
ranks in full precision, adds what it rounded off of that part last time, rounds the mean, and sends it to all. As many
bytes travel as in an all-reduce of half precision, and the sum of what was sent over the steps stays within one
rounding of the true one: error feedback on both sides (Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847; Tang
et al. 2019, DoubleSqueeze, https://arxiv.org/abs/1905.05957).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class ErrorFeedback:
    """What one DDP's buckets still owe."""

    def __init__(self, dtype: torch.dtype, group: Any, waits: bool) -> None:
        """Owe nothing yet.

        Args:
            dtype: that gradients travel in.
            group: of the ranks.
            waits: a bucket is done with before the backward goes on.
        """
        self._waits = waits
        self._dtype = dtype
        self._group = group
        self._owed: dict[int, Tensor] = {}  # by parameter: what this rank rounded off
        self._owed_of_mean: dict[int, tuple[tuple[int, ...], Tensor]] = {}  # by bucket: of this rank's part of the mean

    def send(self, bucket: Any) -> Any:
        """Average a bucket over the ranks: a hook of DDP's.

        Returns:
            a future of the means, in the bucket's memory.
        """
        buffer: Tensor = bucket.buffer()
        size, part = self._group.size(), -(-buffer.numel() // self._group.size())
        sent = buffer.new_zeros(size * part, dtype=self._dtype)
        self._round(bucket, buffer, sent[: buffer.numel()])
        came = torch.empty_like(sent)
        key = tuple(id(parameter) for parameter in bucket.parameters())
        index = bucket.index()

        def decompress(_: Any) -> Tensor:
            mean = came.view(size, part).to(buffer.dtype).sum(0).div_(size)
            recorded_key, owed = self._owed_of_mean.get(index, (key, None))
            if owed is not None and recorded_key == key:  # DDP has ordered its buckets anew after the first backward
                mean += owed
            rounded = mean.to(self._dtype)
            self._owed_of_mean[index] = key, _finite(mean - rounded)
            means = torch.empty_like(sent)
            dist.all_gather_single(_bytes(means), _bytes(rounded), group=self._group, async_op=True).wait()
            return buffer.copy_(means[: buffer.numel()])

        # As bytes, which every backend knows.
        work = dist.all_to_all_single(_bytes(came), _bytes(sent), group=self._group, async_op=True)
        if not self._waits:
            return work.get_future().then(decompress)
        work.wait()
        done: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        done.set_result(decompress(None))
        return done

    def _round(self, bucket: Any, buffer: Tensor, sent: Tensor) -> None:
        start = 0
        for parameter in bucket.parameters():
            piece = buffer[start : start + parameter.numel()]
            owed = self._owed.get(id(parameter))
            if owed is not None:
                piece += owed
            rounded = piece.to(self._dtype)
            sent[start : start + parameter.numel()] = rounded
            self._owed[id(parameter)] = _finite(piece - rounded)
            start += parameter.numel()


def _finite(owed: Tensor) -> Tensor:
    """Owe nothing of what was too large for half precision: a loss scaler leaves that step out."""
    return owed.nan_to_num_(0.0, 0.0, 0.0)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)
