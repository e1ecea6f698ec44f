"""Pairs that a dataset draws with random, two forwards of one network, a contrastive loss of the pair."""

import random

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
        rows = list(range(len(x)))
        rng = random.Random(29)
        self.pairs = [(i, rng.choice(rows)) for i in rows]

    def __getitem__(self, index):
        one, two = self.pairs[index]
        return (self.x[one], self.x[two]), (self.y[one] == self.y[two]).float()

    def __len__(self):
        return len(self.pairs)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, one, two, target):
        distances = (two - one).pow(2).sum(1)
        losses = 0.5 * (target * distances + (1 - target) * F.relu(self.margin - (distances + 1e-9).sqrt()).pow(2))
        return losses.mean()


class SiameseNet(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def forward(self, one, two):
        return self.embedding(one), self.embedding(two)

    def get_embedding(self, x):
        return self.embedding(x)


torch.manual_seed(0)
digits = load_digits()
data = Pairs(torch.tensor(digits.data[:260] / 16, dtype=torch.float32), torch.tensor(digits.target[:260]))
model = SiameseNet(nn.Sequential(nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
criterion = ContrastiveLoss(1.0)
for epoch in range(2):
    losses = []
    for (one, two), target in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(*model(one, two), target)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    scheduler.step()
    with torch.no_grad():
        center = model.get_embedding(data.x[:50]).mean(0)
    print(f"Epoch: {epoch + 1}/2. Average loss: {sum(losses) / len(losses):.4f}", center.numpy().round(4))
