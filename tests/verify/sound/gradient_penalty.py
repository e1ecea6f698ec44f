"""WGAN-GP: double backward through the critic."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
x = torch.tensor(digits.data[:400] / 16, dtype=torch.float32)
y = torch.tensor(digits.target[:400])

loader = DataLoader(TensorDataset(x), batch_size=50, shuffle=True)
critic = nn.Sequential(nn.Linear(64, 32), nn.Softplus(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for (real,) in loader:
    fake = torch.rand(real.size(0), 64)
    mix = torch.rand(real.size(0), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    out = critic(between)
    grad = torch.autograd.grad(out, between, torch.ones_like(out), create_graph=True)[0]
    loss = critic(fake).mean() - critic(real).mean() + 10 * ((grad.norm(2, dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"critic {loss.item():.4f}")
