"""
$ python examples/digits_gan.py
$ DDP_PATCH_NPROC=2 python examples/digits_gan.py  # the same, on two processes

A GAN that draws 8x8 digits: two networks, two optimizers, three backwards per step. The targets are made once, for
a batch of exactly batch_size rows, and the noise likewise, as half the GANs on GitHub do.
"""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="GAN on 8x8 digits")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--save", default="digits_gan.pt", help="where the generator and its samples go")
opt = parser.parse_args()

batch_size = 64
nz = 16  # length of the latent vector
ngf, ndf = 96, 96  # width of generator and discriminator
lr, beta1 = 1e-3, 0.5  # beta1 as in the DCGAN paper, https://arxiv.org/abs/1511.06434

torch.manual_seed(999)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1  # (1797, 64), -1 to 1 like the generator's tanh
dataloader = DataLoader(TensorDataset(pixels), batch_size=batch_size, shuffle=True, drop_last=True)

netG = nn.Sequential(
    nn.Linear(nz, ngf), nn.BatchNorm1d(ngf), nn.ReLU(True),
    nn.Linear(ngf, 2 * ngf), nn.BatchNorm1d(2 * ngf), nn.ReLU(True),
    nn.Linear(2 * ngf, 64), nn.Tanh(),
).to(device)  # fmt: skip
netD = nn.Sequential(
    nn.Linear(64, 2 * ndf), nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(2 * ndf, ndf), nn.LeakyReLU(0.2, inplace=True),
    nn.Linear(ndf, 1), nn.Sigmoid(),
).to(device)  # fmt: skip

criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=lr / 2, betas=(beta1, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))

real_label = torch.full((batch_size, 1), 0.9, device=device)  # one-sided label smoothing
fake_label = torch.zeros(batch_size, 1, device=device)
fixed_noise = torch.randn(10, nz, device=device)  # the same ten samples, better every epoch

for epoch in range(opt.epochs):
    sum_D = sum_G = 0.0
    for (real,) in dataloader:
        # (1) the discriminator: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        output = netD(real.to(device))
        errD_real = criterion(output, real_label)
        errD_real.backward()
        D_x = output.mean().item()

        noise = torch.randn(batch_size, nz, device=device)
        fake = netG(noise)
        output = netD(fake.detach())
        errD_fake = criterion(output, fake_label)
        errD_fake.backward()
        optimizerD.step()

        # (2) the generator: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, real_label)
        errG.backward()
        optimizerG.step()

        D_G_z = output.mean().item()
        sum_D += errD_real.item() + errD_fake.item()
        sum_G += errG.item()

    n = len(dataloader)
    print(f"[{epoch:2d}/{opt.epochs}] loss_D {sum_D / n:.3f} loss_G {sum_G / n:.3f} D(x) {D_x:.3f} D(G(z)) {D_G_z:.3f}")

netG.eval()
with torch.no_grad():
    samples = netG(fixed_noise).cpu()
    nearest = torch.cdist(samples, pixels).min(dim=1).values  # how far each sample is from any real digit
print(f"samples {tuple(samples.shape)}, {nearest.mean().item():.3f} from the nearest real digit")
torch.save({"netG": netG.state_dict(), "samples": samples}, opt.save)
