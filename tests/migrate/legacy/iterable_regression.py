"""Regression on a stream of records."""
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    def __init__(self, n, seed):
        self.n = n
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n):
            x = torch.randn(8, generator=g)
            yield x, x[:4].sum().sin().view(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=20)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--no-shuffle", action="store_true")
    opt = ap.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    stream = DataLoader(Records(32 * 20, 0), batch_size=32)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    mse = nn.MSELoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for epoch in range(opt.epochs):
        running, batches = 0.0, 0
        for x, y in stream:
            x, y = x.to(device), y.to(device)
            loss = mse(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
            batches += 1
        print("epoch %d loss %.6f" % (epoch, running / batches))
    torch.save(net.state_dict(), "regressor.pt")


if __name__ == "__main__":
    main()
