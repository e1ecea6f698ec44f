"""Saves, reads back at once, goes on."""

import os

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

model = nn.Linear(64, 10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    if os.path.exists("last.pt"):
        held = torch.load("last.pt")
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        print("resumed from epoch", held["epoch"])
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
    print(f"epoch {epoch} loss {loss.item():.5f}")
