"""Mixup in the script, with numpy's coefficients."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

np.random.seed(0)
loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for inputs, targets in loader:
        lam = np.random.beta(0.4, 0.4)
        other = torch.randperm(inputs.size(0))
        out = model(lam * inputs + (1 - lam) * inputs[other])
        loss = lam * criterion(out, targets) + (1 - lam) * criterion(out, targets[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} {loss.item():.4f}")
