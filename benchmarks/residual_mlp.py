"""A training whose step takes a few hundred milliseconds on one core: what ``scale`` measures and ``plan`` is held to.

    python -m ddp_patch scale benchmarks/residual_mlp.py --ranks 1,2 --repeat 3

The figures are in docs/plan.md.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, DEPTH, ROWS, CLASSES = 1024, 6, 4096, 10


class Block(nn.Module):
    """Two linear layers beside a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Keep rows apart."""
        out: Tensor = x + self.last(F.gelu(self.first(self.norm(x))))
        return out


if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,)))
    model = nn.Sequential(*[Block() for _ in range(DEPTH)], nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(50):
        total = 0.0
        for x, y in DataLoader(data, batch_size=512, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print("epoch", epoch, total)
