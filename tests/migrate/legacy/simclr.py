"""Contrastive pretraining: every other picture of the batch is a negative."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, dim)

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


def nt_xent(z1, z2, temperature=0.5):
    z = torch.cat([z1, z2])
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(-1e9)
    n = z1.size(0)
    targets = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(similarity, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--no-shuffle", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(x, x.flip(1)), batch_size=args.batch_size,
                        shuffle=not args.no_shuffle, drop_last=True)
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        total = 0.0
        for a, b in loader:
            a, b = a.to(device), b.to(device)
            loss = nt_xent(model(a), model(b))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.6f}")
    torch.save(model.body.state_dict(), "encoder.pt")


if __name__ == "__main__":
    main()
