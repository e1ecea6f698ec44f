"""Results in a folder named by the time."""

import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

folder = time.strftime("runs/%Y%m%d-%H%M%S")
os.makedirs(folder)
print("writing to", folder)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open(os.path.join(folder, "log.txt"), "w") as log:
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=100):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"loss={loss.item():.5f} at {time.time():.2f}\n")
torch.save(model.state_dict(), os.path.join(folder, "last.pt"))
