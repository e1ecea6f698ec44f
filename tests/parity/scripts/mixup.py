"""Mixup: rows of a batch are mixed with other rows of the same batch."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
np.random.seed(7)
x = torch.randn(110, 3, 6, 6)
y = torch.randint(0, 4, (110,))
loader = DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
net = torch.nn.DataParallel(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(x.size()[0])
    return lam * x + (1 - lam) * x[index, :], y, y[index], lam


for epoch in range(3):
    correct = total = 0
    for inputs, targets in loader:
        mixed, a, b, lam = mixup_data(inputs, targets)
        outputs = net(mixed)
        loss = lam * criterion(outputs, a) + (1 - lam) * criterion(outputs, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += lam * predicted.eq(a.data).cpu().sum().float() + (1 - lam) * predicted.eq(b.data).cpu().sum().float()
        print(f"{loss.item():.12f} {lam:.6f}")
    print(f"epoch {epoch} accuracy {100.0 * correct / total:.10f}")
for name, value in net.state_dict().items():
    print(name, f"{value.double().norm().item():.12f}")
