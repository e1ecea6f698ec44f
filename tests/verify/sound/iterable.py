"""An iterable dataset."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for _ in range(250):
            x = torch.randn(6, generator=generator)
            yield x, x.sum().unsqueeze(0)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(2):
    for i, (x, y) in enumerate(DataLoader(Stream(), batch_size=32)):
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count = i + 1
    print(f"epoch {epoch} batches {count} loss {loss.item():.5f}")
