"""
$ python examples/digits_dataparallel.py
$ DDP_PATCH_NPROC=2 python examples/digits_dataparallel.py  # the same, on two processes

Reads handwritten digits (8x8 pixels, 10 classes) with a small CNN under nn.DataParallel. BatchNorm, a ragged last
batch, accuracy over len(dataset), the best checkpoint kept: the script everybody has in a drawer.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="CNN on 8x8 digits")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--save", default="digits_dataparallel.pt", help="where the best checkpoint goes")
parser.add_argument("--double", action="store_true", help="float64 throughout")
args = parser.parse_args()

torch.manual_seed(1337)
if args.double:
    torch.set_default_dtype(torch.float64)
device = "cuda" if torch.cuda.is_available() else "cpu"

digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype()).unsqueeze(1)  # (1797, 1, 8, 8), 0 to 1
labels = torch.tensor(digits.target)
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=args.batch_size, shuffle=True)  # last batch: 29
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=100)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)  # 8x8 -> 4x4
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)  # 4x4 -> 2x2
        return self.fc(x.flatten(1))


model = nn.DataParallel(Net()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)

best_acc, best_epoch = 0.0, 0
print("epoch train loss  test loss accuracy")
for epoch in range(1, args.epochs + 1):
    model.train()
    train_loss = 0.0
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() * x.size(0)  # back from the batch's mean to its sum
    train_loss /= len(train_loader.dataset)

    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            output = model(x)
            test_loss += F.cross_entropy(output, y, reduction="sum").item()
            correct += (output.argmax(dim=1) == y).sum().item()
    test_loss /= len(test_loader.dataset)
    acc = 100.0 * correct / len(test_loader.dataset)

    is_best = acc > best_acc
    if is_best:
        best_acc, best_epoch = acc, epoch
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
    print(f"{epoch:5d} {train_loss:10.8f} {test_loss:10.8f} {acc:7.2f}%{' *' if is_best else ''}")

print(f"best {best_acc:.2f}% in epoch {best_epoch}, kept")
