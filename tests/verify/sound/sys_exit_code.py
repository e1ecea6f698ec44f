"""Ends by sys.exit with a code of its own."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])


def main():
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print("final", loss.item())
    return 3 if loss.item() > 0.1 else 0


if __name__ == "__main__":
    sys.exit(main())
