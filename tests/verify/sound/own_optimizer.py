"""An optimizer of the script's own, which clips."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])


class Clipped(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.clamp(-0.01, 0.01), alpha=-group["lr"])


loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
model = nn.Linear(64, 10)
optimizer = Clipped(model.parameters(), 1.0)
for inputs, targets in loader:
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    print(f"grad {sum(p.grad.norm() for p in model.parameters()):.5f}")
    optimizer.step()
