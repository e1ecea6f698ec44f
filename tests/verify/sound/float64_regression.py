# verify: --nproc 3
"""Whole in float64, with the weights printed."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = load_diabetes()
x, y = torch.tensor(data.data), torch.tensor(data.target / 100)
model = nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True):
        loss = (model(a).squeeze(1) - b).pow(2).sum() / len(a)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
print(model.weight)
