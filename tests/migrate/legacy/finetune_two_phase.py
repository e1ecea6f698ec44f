"""Train a new head on a frozen backbone, then all of it."""
import os

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.fc = nn.Linear(64, 100)

    def forward(self, x):
        return self.fc(self.features(x))


def run_epoch(loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total, correct = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
        correct += (out.argmax(1) == y).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)


def evaluate(loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)


digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
y = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(x[:1440], y[:1440]), batch_size=48, shuffle="FIXED_ORDER" not in os.environ)
val_loader = DataLoader(TensorDataset(x[1440:], y[1440:]), batch_size=48)

model = Backbone()
for p in model.parameters():
    p.requires_grad = False
model.fc = nn.Linear(64, 10)  # the new head
model = nn.DataParallel(model)
model = model.to(device)
criterion = nn.CrossEntropyLoss()

# phase one: the head alone
optimizer = torch.optim.SGD(model.module.fc.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    loss, acc = run_epoch(train_loader, optimizer)
    print("head epoch %d loss %.6f acc %.4f val acc %.4f" % (epoch, loss, acc, evaluate(val_loader)))

# phase two: everything, with a smaller step for the backbone
for p in model.parameters():
    p.requires_grad = True
optimizer = torch.optim.SGD([
    {"params": model.module.features.parameters(), "lr": 0.05},
    {"params": model.module.fc.parameters()},
], lr=0.1, momentum=0.9)
for epoch in range(2):
    loss, acc = run_epoch(train_loader, optimizer)
    print("all epoch %d loss %.6f acc %.4f val acc %.4f" % (epoch, loss, acc, evaluate(val_loader)))
torch.save(model.module.state_dict(), "finetuned.pth")
