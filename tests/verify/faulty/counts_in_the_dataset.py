"""A dataset that counts what it was asked for, in the process that loads it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Counting(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(200, 8, generator=generator)
        self.seen = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.seen += 1  # FAULT
        return self.x[i], (self.x[i].sum() > 0).long()


torch.manual_seed(0)
data = Counting()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in DataLoader(data, batch_size=40, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} rows {data.seen} loss {loss.item():.5f}")  # FAULT
