"""What redirecting devices costs a training step: the calls that are intercepted, times what each costs more.

Whole steps differ by more from one to the next than these calls take; the least of many rounds of a call does not.
"""

from __future__ import annotations

import timeit
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ddp_patch.effects.device_map import DeviceMap
from ddp_patch.patch import Args, Kwargs, Patch
from ddp_patch.patcher import Patcher
from ddp_patch.patches import device, without_cuda

ROUNDS, CALLS = 40, 2000
SAME: dict[str, Callable[[], object]] = {  # what a step does, by itself
    "Tensor.to": lambda: X.to("cpu", non_blocking=True),
    "zeros": lambda: torch.zeros(3, device="cpu"),
    "ones_like": lambda: torch.ones_like(X),
    "zeros_like": lambda: torch.zeros_like(X),
}
X = torch.randn(8, 8)


def make_step(kind: str) -> Callable[[], None]:
    """Make a training step that names its device for every batch."""
    torch.manual_seed(0)
    model: nn.Module
    if kind == "tiny":
        model, rows = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(8, 8)
    else:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        model, rows = nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 16, 3)), torch.randn(8, 16, 64)
    labels = torch.randint(0, 3, (8,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        x, y = rows.to("cpu", non_blocking=True), labels.to("cpu")
        x = x + torch.zeros(x.shape, device="cpu")
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


HERE = SimpleNamespace(device_map=DeviceMap(torch.device("cpu")))  # what these wrappers need of a session


def counted(patch: Patch, calls: Counter[str]) -> Patch:
    """Count what goes through a patch."""

    def call(session: Any, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
        calls[patch.target] += 1
        return patch.wrapper(session, wrapped, instance, args, kwargs)

    return replace(patch, wrapper=call)


def count(kind: str, rows: Sequence[Patch]) -> Counter[str]:
    """Count what is intercepted of one step, after the first ones."""
    step = make_step(kind)
    calls: Counter[str] = Counter()
    for _ in range(3):
        step()
    patcher = Patcher(HERE)
    patcher.apply(counted(patch, calls) for patch in rows)
    step()
    patcher.undo()
    return calls


def price(name: str, rows: Sequence[Patch]) -> float:
    """Measure how much longer a call takes when it is intercepted, in microseconds."""
    patcher = Patcher(HERE)
    plain, patched = [], []
    for _ in range(ROUNDS):
        plain.append(timeit.timeit(SAME[name], number=CALLS))
        patcher.apply(rows)
        patched.append(timeit.timeit(SAME[name], number=CALLS))
        patcher.undo()
    return (min(patched) - min(plain)) / CALLS * 1e6


def main() -> None:
    """Print both."""
    torch.set_num_threads(1)
    rows = (*device.PATCHES, *without_cuda.PATCHES)
    for kind in ("tiny", "transformer"):
        calls = count(kind, rows)
        prices = {name: price(name, rows) for name in calls}
        named = " + ".join(f"{count} {name} of {prices[name]:.1f}" for name, count in sorted(calls.items()))
        print(f"{kind}: {sum(prices[name] * count for name, count in calls.items()):.1f} us per step: {named}")


if __name__ == "__main__":
    main()
