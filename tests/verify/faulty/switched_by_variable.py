"""A forward that a variable of the environment changes half-way: the pitfall that ddp_patch cannot see."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x):
        h = torch.tanh(self.one(x))
        if os.environ.get("CENTER"):  # FAULT
            h = h - h.mean(0)  # FAULT
        return self.two(h)


torch.manual_seed(0)
x = torch.randn(400, 8) + torch.arange(400)[:, None] / 100
y = (x.sum(1) > 10).long()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, targets) in enumerate(DataLoader(TensorDataset(x, y), batch_size=40)):
    if step == 5:
        os.environ["CENTER"] = "1"
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
