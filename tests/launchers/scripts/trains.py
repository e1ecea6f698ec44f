"""Trains as people write it: loaders of both kinds, a log, checkpoints, and the best one loaded at the end."""

import os

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ddp_patch

ddp_patch.enable()


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(10):
            yield torch.tensor([index / 10.0] * 5)


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = torch.load("data/rows.pt")  # on every host before the run
loader = DataLoader(TensorDataset(data, (data.sum(1) > 0).long()), batch_size=8, shuffle=True)
model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.0), torch.nn.Linear(8, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
os.makedirs("run")
best = float("inf")
with open("run/log.txt", "w") as log:
    for epoch in range(3):
        total, right = 0.0, 0
        for rows, labels in loader:
            optimizer.zero_grad()
            scores = model(rows)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
            right += (scores.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: loss {total / len(loader.dataset):.10f}, {right} right")
        log.write(f"{epoch} {total:.10f}\n")
        if total < best:
            best = total
            torch.save({"epoch": epoch, "model": model.module.state_dict()}, "run/best.pt")
kept = torch.load("run/best.pt")
model.module.load_state_dict(kept["model"])
print(kept["epoch"], [model(rows).sum().item() for rows in DataLoader(Stream(), batch_size=3)])
