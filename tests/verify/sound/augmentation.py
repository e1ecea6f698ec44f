"""A dataset that draws for each item, from torch, numpy and random."""

import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        digits = load_digits()
        self.x, self.y = torch.tensor(digits.images[:300] / 16).float(), torch.tensor(digits.target[:300])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        image = self.x[i]
        if random.random() < 0.5:
            image = image.flip(1)
        image = image + 0.05 * torch.randn(8, 8) + float(np.random.uniform(-0.1, 0.1))
        return image.unsqueeze(0), self.y[i]


torch.manual_seed(1)
random.seed(1)
np.random.seed(1)
loader = DataLoader(Augmented(), batch_size=50, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for image, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(image), target)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", round(loss.item(), 4))
