"""Reparametrisation noise inside the forward."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.var = nn.Linear(64, 32), nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        h = torch.relu(self.encode(x))
        mean, var = self.mean(h), self.var(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * var)
        return self.decode(z), mean, var


loader = DataLoader(TensorDataset(x), batch_size=50, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    total = 0
    for (batch,) in loader:
        recon, mean, var = model(batch)
        bce = nn.functional.binary_cross_entropy(recon, batch, reduction="sum")
        loss = bce - 0.5 * torch.sum(1 + var - mean.pow(2) - var.exp())
        optimizer.zero_grad()
        loss.backward()
        total += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {total / len(loader.dataset):.4f}")
