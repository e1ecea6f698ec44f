"""What a step costs in the local view, beside hand-written DDP: both in turn, in the same two processes.

    python benchmarks/local_view.py

Prints the time of rank 0's thread in a step, in microseconds: what the script's thread computes, not what it
waits for.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddp_patch

ROUNDS, STEPS, WARM = 10, 300, 30
TENSORS = (6, 300, 1000)


def model_of(tensors: int) -> nn.Module:
    """Make a net with that many parameter tensors."""
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(tensors // 2) for layer in (nn.Linear(16, 16), nn.ReLU())])


def thread_time(model: nn.Module, steps: int) -> float:
    """Give the median time of a step."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    x, taken = torch.randn(8, 16), []
    for step in range(steps):
        began = time.thread_time()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= WARM:
            taken.append(time.thread_time() - began)
    return statistics.median(taken)


def main() -> None:
    """Run on each rank."""
    for tensors in TENSORS:
        steps = WARM + max(40, STEPS * 6 // tensors)
        ours, hands = [], []
        for _ in range(ROUNDS):
            with ddp_patch.enable(view="local", quiet=True):
                ours.append(thread_time(model_of(tensors), steps))
            by_hand = DistributedDataParallel(model_of(tensors), broadcast_buffers=False)
            hands.append(thread_time(by_hand, steps))
            del by_hand
            gc.collect()
        if dist.get_rank() == 0:
            more = statistics.median(a - b for a, b in zip(ours, hands, strict=True))
            print(
                f"{tensors:5} tensors: hand-written {1e6 * min(hands):8.1f}, local view {1e6 * min(ours):8.1f}, "
                f"more: {1e6 * (min(ours) - min(hands)):6.1f} (median of pairs {1e6 * more:6.1f})",
                flush=True,
            )


if __name__ == "__main__":
    if "RANK" not in os.environ:
        module = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__]
        os.execv(sys.executable, module)
    main()
