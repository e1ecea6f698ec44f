"""A GAN whose shapes hold the batch size; two networks, two optimizers, three backwards per step."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
nz = 6
data = torch.randn(77, 16) * 0.5 + 1.0
loader = DataLoader(TensorDataset(data, torch.zeros(77)), batch_size=20, shuffle=True)
G = nn.Sequential(nn.Linear(nz, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 16))
D = nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1), nn.Sigmoid())
optD = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
optG = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCELoss()
fixed_noise = torch.randn(9, nz)
for epoch in range(3):
    for i, (real, _) in enumerate(loader):
        batch_size = real.size(0)
        D.zero_grad()
        label = torch.full((batch_size,), 1.0)
        output = D(real).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()
        noise = torch.randn(batch_size, nz)
        fake = G(noise)
        label.fill_(0.0)
        output = D(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optD.step()
        G.zero_grad()
        label.fill_(1.0)
        output = D(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        optG.step()
        print(f"[{epoch}][{i}] {errD.item():.12f} {errG.item():.12f} {D_x:.12f} {output.mean().item():.12f}")
    with torch.no_grad():
        samples = G(fixed_noise)
    print(f"samples {tuple(samples.shape)} {samples.sum().item():.12f} {samples[0, 0]:.12f}")
    torch.save(G.state_dict(), f"netG_{epoch}.pt")
for net in (G, D):
    for name, value in net.state_dict().items():
        print(name, f"{value.double().norm().item():.12f}")
