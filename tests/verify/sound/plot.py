"""A picture of the losses, and a pickle."""

import pickle

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=80, shuffle=True)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
plt.plot(losses)
plt.savefig("losses.png")
with open("history.pkl", "wb") as f:
    pickle.dump({"loss": losses, "rate": 0.1}, f)
