"""Triplets mined in the batch, several forwards a step, unused parameters."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.classify = nn.Linear(8, 10)  # of an experiment that is over

    def forward(self, x):
        return nn.functional.normalize(self.embed(x), dim=1)


loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for inputs, targets in loader:
    z = net(inputs)
    distance = torch.cdist(z, z)
    same = targets[:, None] == targets[None, :]
    positive = (distance * same).max(1).values
    negative = (distance + 10 * same).min(1).values
    loss = torch.relu(positive - negative + 0.2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"triplet {loss.item():.4f}")
