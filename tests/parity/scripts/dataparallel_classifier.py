"""DataParallel classifier: BatchNorm, a ragged last batch, accuracy over len(dataset), best checkpoint and reload."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
images = torch.randn(203, 1, 8, 8)
labels = (images.mean((1, 2, 3)) * 40).long().clamp(-1, 1) + 1
train = DataLoader(TensorDataset(images[:150], labels[:150]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(images[150:], labels[150:]), batch_size=20)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 36, 24)
        self.norm2 = nn.BatchNorm1d(24)
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.norm2(self.fc(x.flatten(1))))
        return self.out(x)


model = nn.DataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
best = 1e9
for epoch in range(3):
    model.train()
    running = 0.0
    for step, (x, y) in enumerate(train):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item() * x.size(0)
        print(f"epoch {epoch} step {step} rows {len(y)} loss {loss.item():.12f}")
    model.eval()
    correct, val = 0, 0.0
    with torch.no_grad():
        for x, y in test:
            out = model(x)
            val += F.cross_entropy(out, y, reduction="sum").item()
            correct += (out.argmax(1) == y).sum().item()
    print(f"epoch {epoch} train {running / len(train.dataset):.12f} val {val / len(test.dataset):.12f}")
    print(f"accuracy {100.0 * correct / len(test.dataset):.12f}")
    if val < best:
        best = val
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
state = torch.load("best.pt")
model.load_state_dict(state["model"])
print(sorted(state["model"])[:3], os.path.getsize("best.pt") > 0, isinstance(model, nn.DataParallel))
for name, value in model.state_dict().items():
    print(name, f"{value.double().norm().item():.12f}")
