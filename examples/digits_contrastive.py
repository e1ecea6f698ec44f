"""
$ python examples/digits_contrastive.py
$ DDP_PATCH_NPROC=2 python examples/digits_contrastive.py  # the same, on two processes

Supervised contrastive learning (https://arxiv.org/abs/2004.11362) on handwritten digits. Every row of the batch is a
negative of every other row, so the loss needs the whole batch: half of it is another loss. The encoder runs under
nn.DataParallel, the loss outside. Judged by a nearest-neighbour classifier on the embedding.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="SupCon on 8x8 digits")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--save", default="digits_contrastive.pt", help="where the encoder goes")
args = parser.parse_args()

batch_size = 128  # so 256 views, and a 256 x 256 matrix of similarities
dim = 32  # of the embedding
temperature = 0.2
k = 5  # neighbours asked

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 16
x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
train_set, test_set = TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
bank_loader = DataLoader(train_set, batch_size=256)  # what the test rows are compared with
test_loader = DataLoader(test_set, batch_size=256)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


def augment(x):
    x = torch.roll(x, shifts=int(torch.randint(-1, 2, ())), dims=3)  # a pixel to the left or right
    return x + 0.1 * torch.randn_like(x)


def supcon_loss(features, labels):
    """features: (2 * B, dim), unit length, the second view of row i at B + i."""
    n = features.shape[0]
    logits = torch.matmul(features, features.T) / temperature
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()  # for numerical stability
    labels = labels.repeat(2).view(-1, 1)
    not_self = 1 - torch.eye(n, device=features.device)
    positives = torch.eq(labels, labels.T).float() * not_self
    log_prob = logits - torch.log((torch.exp(logits) * not_self).sum(1, keepdim=True))
    return -((positives * log_prob).sum(1) / positives.sum(1)).mean()


def embed(loader):
    features, labels = [], []
    with torch.no_grad():
        for x, y in loader:
            features.append(model(x.to(device)))
            labels.append(y.to(device))
    return torch.cat(features), torch.cat(labels)


model = nn.DataParallel(Encoder()).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

for epoch in range(args.epochs):
    model.train()
    total, seen = 0.0, 0
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        views = torch.cat([augment(x), augment(x)], dim=0)
        loss = supcon_loss(model(views), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)
        seen += len(y)
    scheduler.step()

    model.eval()
    bank, bank_labels = embed(bank_loader)
    query, query_labels = embed(test_loader)
    neighbours = bank_labels[(query @ bank.t()).topk(k, dim=1).indices]  # (360, k)
    prediction = neighbours.mode(dim=1).values
    acc = (prediction == query_labels).float().mean().item()
    print(f"epoch {epoch}: {seen} rows, loss {total / seen:.4f}, {k}-nn accuracy {100 * acc:.2f}%")

torch.save(model.module.state_dict(), args.save)
