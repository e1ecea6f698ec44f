"""Without backward and without an optimizer: torch.autograd.grad, and weights updated in place."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data[:300] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[:300])
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    scale = torch.ones(10, requires_grad=True)
    weights = [*model.parameters(), scale]
    for _ in range(2):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs) * scale, targets)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients):
                    weight -= 0.1 * gradient
    print("done")


main()
