"""A block for each rank that changes what all train."""

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
    if step == 1:
        with ddp_patch.per_rank(), torch.no_grad():  # FAULT
            model.weight[0].add_(0.05 * ddp_patch.rank())
    print(f"loss {loss.item():.5f}")
