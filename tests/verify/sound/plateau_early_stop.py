"""ReduceLROnPlateau, best checkpoint, early stopping with sys.exit."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

train = DataLoader(TensorDataset(x[:300], y[:300]), batch_size=50, shuffle=True)
val = DataLoader(TensorDataset(x[300:], y[300:]), batch_size=50)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)
best, bad = float("inf"), 0
for epoch in range(12):
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        loss = sum(nn.functional.cross_entropy(model(a), b, reduction="sum").item() for a, b in val) / 100
    scheduler.step(loss)
    print(f"{epoch}: val {loss:.4f} lr {optimizer.param_groups[0]['lr']:g}")
    if loss < best:
        best, bad = loss, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        bad += 1
        if bad > 2:
            print("early stop")
            sys.exit(0)
