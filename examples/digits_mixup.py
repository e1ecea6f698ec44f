"""
$ python examples/digits_mixup.py
$ DDP_PATCH_NPROC=2 python examples/digits_mixup.py  # the same, on two processes

Mixup (https://arxiv.org/abs/1710.09412) on handwritten digits: every row is blended with another row of the same
batch, wherever in the batch that is. The blending weight comes from numpy, the partner from torch. One model on one
device, nothing wrapped.
"""

import argparse

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="mixup on 8x8 digits")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--alpha", type=float, default=0.4, help="of the beta distribution; 0 turns mixup off")
parser.add_argument("--save", default="digits_mixup.pt", help="where the best model goes")
args = parser.parse_args()

np.random.seed(20)
torch.manual_seed(20)
device = "cuda" if torch.cuda.is_available() else "cpu"

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
trainset = TensorDataset(images[:1400], labels[:1400])
testset = TensorDataset(images[1400:], labels[1400:])  # the last rows, as they come: harder than a random split
trainloader = DataLoader(trainset, batch_size=48, shuffle=True)
testloader = DataLoader(testset, batch_size=100, shuffle=False)

net = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(24 * 4 * 4, 10),
).to(device)  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)


def mixup_data(x, y, alpha):
    """Returns mixed inputs, pairs of targets, and lambda."""
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1.0
    index = torch.randperm(x.size(0)).to(device)
    return lam * x + (1 - lam) * x[index], y, y[index], lam


def mixup_criterion(pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)


def train():
    net.train()
    train_loss, correct, total = 0.0, 0.0, 0
    for inputs, targets in trainloader:
        inputs, targets = inputs.to(device), targets.to(device)
        inputs, targets_a, targets_b, lam = mixup_data(inputs, targets, args.alpha)
        outputs = net(inputs)
        loss = mixup_criterion(outputs, targets_a, targets_b, lam)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += (lam * predicted.eq(targets_a.data).sum() + (1 - lam) * predicted.eq(targets_b.data).sum()).item()
    return train_loss / len(trainloader), 100.0 * correct / total


def test():
    net.eval()
    test_loss, correct, total = 0.0, 0, 0
    with torch.no_grad():
        for inputs, targets in testloader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = net(inputs)
            test_loss += criterion(outputs, targets).item()
            predicted = outputs.max(1)[1]
            total += targets.size(0)
            correct += predicted.eq(targets).sum().item()
    return test_loss / len(testloader), 100.0 * correct / total


best_acc = 0.0
for epoch in range(args.epochs):
    train_loss, train_acc = train()
    test_loss, test_acc = test()
    print(f"epoch {epoch} | train {train_loss:.4f} {train_acc:6.2f}% | test {test_loss:.4f} {test_acc:6.2f}%", end="")
    if test_acc > best_acc:
        best_acc = test_acc
        torch.save({"net": net.state_dict(), "acc": test_acc, "epoch": epoch}, args.save)
        print(" | saved", end="")
    print()
