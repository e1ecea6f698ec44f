"""An unseeded WeightedRandomSampler."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

weights = 1.0 / torch.bincount(y).float()[y]
loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=WeightedRandomSampler(weights, 300))
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
seen = torch.zeros(10, dtype=torch.long)
for inputs, targets in loader:
    seen += torch.bincount(targets, minlength=10)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(seen.tolist(), f"{loss.item():.4f}")
