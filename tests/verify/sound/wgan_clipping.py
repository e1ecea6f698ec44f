"""WGAN: several critic steps for one of the generator, weights clamped by hand, an iterator that starts again."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
digits = load_digits()
loader = DataLoader(TensorDataset(torch.tensor(digits.data[:200] / 8 - 1, dtype=torch.float32)), 40, shuffle=True)
generator = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32, 0.8), nn.LeakyReLU(0.2), nn.Linear(32, 64), nn.Tanh())
critic = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
one, mone = torch.tensor(1.0), torch.tensor(-1.0)
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
optimizer_d = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
batches = iter(loader)
for step in range(4):
    for p in critic.parameters():
        p.requires_grad = True
    for _ in range(3):
        try:
            (real,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (real,) = next(batches)
        critic.zero_grad()
        loss_real = critic(real).mean()
        loss_real.backward(mone)
        with torch.no_grad():
            fake = generator(torch.randn(real.size(0), 8))
        loss_fake = critic(fake).mean()
        loss_fake.backward(one)
        optimizer_d.step()
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)
    for p in critic.parameters():
        p.requires_grad = False
    generator.zero_grad()
    loss_g = critic(generator(torch.randn(40, 8))).mean()
    loss_g.backward(mone)
    optimizer_g.step()
    print(f"[{step}] Loss_D {(loss_real - loss_fake).item():.6f} Loss_G {loss_g.item():.6f}")
