"""A learning rate by the rank, which ddp_patch tells who asks."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

torch.manual_seed(0)
x = torch.randn(200, 8)
y = (x.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + ddp_patch.rank()))  # FAULT
for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=40):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.5f}")
