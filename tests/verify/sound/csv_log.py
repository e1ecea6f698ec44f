"""A CSV log, a JSON summary and a npz."""

import csv
import json
import os

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

os.makedirs("out", exist_ok=True)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
losses = []
with open("out/log.csv", "w", newline="") as stream:
    writer = csv.writer(stream)
    writer.writerow(["step", "loss"])
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        writer.writerow([len(losses), f"{losses[-1]:.5f}"])
json.dump({"final": losses[-1], "steps": len(losses)}, open("out/summary.json", "w"))
np.savez("out/losses.npz", losses=np.array(losses))
