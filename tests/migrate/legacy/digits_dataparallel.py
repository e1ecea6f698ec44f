# -*- coding: utf-8 -*-
"""Train a classifier of handwritten digits on one or several GPUs."""
from __future__ import print_function

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description="digits")
parser.add_argument("--batch-size", type=int, default=64, metavar="N")
parser.add_argument("--epochs", type=int, default=3, metavar="N")
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--gpu-ids", default="0,1", help="GPUs to use, for instance 0,1,2")
parser.add_argument("--resume", default="", help="path of a checkpoint")
parser.add_argument("--no-shuffle", action="store_true")
args = parser.parse_args()

os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu_ids
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def train(epoch):
    model.train()
    train_loss = 0
    correct = 0
    total = 0
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()

        train_loss += loss.item()
        _, predicted = output.max(1)
        total += target.size(0)
        correct += predicted.eq(target).sum().item()
        if batch_idx % 10 == 0:  # now and then
            print("  [%d/%d] loss %.4f" % (batch_idx, len(train_loader), loss.item()))
    print("Epoch %d train loss: %.6f acc: %.3f%%" % (epoch, train_loss / len(train_loader), 100.0 * correct / total))


def test(epoch):
    global best_acc
    model.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.cross_entropy(output, target, reduction="sum").item()  # sum up batch loss
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()

    test_loss /= len(test_loader.dataset)
    acc = 100.0 * correct / len(test_loader.dataset)
    print("Test loss: {:.6f}, accuracy: {}/{} ({:.2f}%)".format(test_loss, correct, len(test_loader.dataset), acc))
    if acc > best_acc:
        print("Saving..")
        state = {"net": model.state_dict(), "acc": acc, "epoch": epoch, "optimizer": optimizer.state_dict()}
        if not os.path.isdir("checkpoint"):
            os.mkdir("checkpoint")
        torch.save(state, "./checkpoint/ckpt.pth")
        best_acc = acc


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train_set = TensorDataset(images[:1500], labels[:1500])
test_set = TensorDataset(images[1500:], labels[1500:])
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=not args.no_shuffle, num_workers=0)
test_loader = DataLoader(test_set, batch_size=100, shuffle=False)

model = Net().to(device)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
scheduler = StepLR(optimizer, step_size=1, gamma=0.7)

best_acc = 0  # best test accuracy
start_epoch = 0
if args.resume:
    checkpoint = torch.load(args.resume)
    model.load_state_dict(checkpoint["net"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    best_acc = checkpoint["acc"]
    start_epoch = checkpoint["epoch"] + 1

for epoch in range(start_epoch, start_epoch + args.epochs):
    train(epoch)
    test(epoch)
    scheduler.step()
