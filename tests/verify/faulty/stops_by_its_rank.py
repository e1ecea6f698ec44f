"""Rank 0 alone leaves the loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

torch.manual_seed(0)
x = torch.randn(200, 8)
y = (x.sum(1) > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, targets) in enumerate(DataLoader(TensorDataset(x, y), batch_size=40)):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2 and ddp_patch.world_size() > 1:  # FAULT
        break
    print(f"loss {loss.item():.5f}")
