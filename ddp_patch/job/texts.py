"""Bytes between the ranks, by a process group; torch's collectives of objects unpickle what comes."""

from __future__ import annotations

import torch
import torch.distributed as dist


def gathered(data: bytes, group: dist.ProcessGroup, size: int) -> list[bytes]:
    """Give what each rank has, by way of the host.

    Args:
        data: of this rank; any length.
        group: of the ranks.
        size: of the group.
    """
    lengths = torch.zeros(size, dtype=torch.long, device="cpu")
    dist.all_gather(list(lengths.split(1)), torch.tensor([len(data)], device="cpu"), group=group)
    longest = max(int(lengths.max()), 1)
    sent = torch.zeros(longest, dtype=torch.uint8, device="cpu")
    sent[: len(data)] = _tensor(data)
    parts = torch.empty(size, longest, dtype=torch.uint8, device="cpu")
    dist.all_gather(list(parts.unbind()), sent, group=group)
    return [part[:length].numpy().tobytes() for part, length in zip(parts, lengths.tolist(), strict=True)]


def of_leader(data: bytes, group: dist.ProcessGroup, device: torch.device | str = "cpu") -> bytes:
    """Give what rank 0 has.

    Args:
        data: of rank 0.
        group: of the ranks.
        device: by which it travels.
    """
    length = torch.tensor([len(data)], device=device)
    dist.broadcast(length, 0, group=group)
    sent = _tensor(data).to(device) if data else torch.zeros(int(length), dtype=torch.uint8, device=device)
    if len(sent):
        dist.broadcast(sent, 0, group=group)
    return sent.cpu().numpy().tobytes()


def _tensor(text: bytes) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else empty
