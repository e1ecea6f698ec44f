"""Two optimizers for one model, and groups with rates of their own."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 32), nn.Linear(32, 10)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.head(torch.relu(self.body(x))) * self.scale


net = Net()
one = torch.optim.SGD([{"params": net.body.parameters(), "lr": 0.1}, {"params": [net.scale], "lr": 0.01}], lr=0.1)
two = torch.optim.Adagrad(net.head.parameters(), lr=0.05)
for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(net(inputs), targets)
        one.zero_grad()
        two.zero_grad()
        loss.backward()
        one.step()
        two.step()
    print(f"{epoch}: {loss:.4f} scale {net.scale.item():.5f}")
