"""A loader with workers."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True, num_workers=2)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, f"{loss.item():.4f}")
