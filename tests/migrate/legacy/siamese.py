import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

cuda = torch.cuda.is_available()
torch.manual_seed(0)


class TripletDigits(Dataset):
    """For each picture another one of its digit, and one of another digit."""

    def __init__(self, images, labels):
        self.images = images
        self.labels = labels
        rng = np.random.RandomState(29)
        by_label = {label: np.where(labels == label)[0] for label in set(labels)}
        self.triplets = [
            [i, rng.choice(by_label[labels[i]]), rng.choice(by_label[rng.choice(list(set(labels) - {labels[i]}))])]
            for i in range(len(images))
        ]

    def __getitem__(self, index):
        return tuple(torch.from_numpy(self.images[i]) for i in self.triplets[index]), []

    def __len__(self):
        return len(self.images)


class EmbeddingNet(nn.Module):
    def __init__(self):
        super(EmbeddingNet, self).__init__()
        self.fc = nn.Sequential(nn.Linear(64, 64), nn.PReLU(), nn.Linear(64, 2))

    def forward(self, x):
        return self.fc(x)

    def get_embedding(self, x):
        return self.forward(x)


class TripletLoss(nn.Module):
    """Takes embeddings of an anchor, a positive and a negative sample."""

    def __init__(self, margin):
        super(TripletLoss, self).__init__()
        self.margin = margin

    def forward(self, anchor, positive, negative):
        distance_positive = (anchor - positive).pow(2).sum(1)
        distance_negative = (anchor - negative).pow(2).sum(1)
        losses = F.relu(distance_positive - distance_negative + self.margin)
        return losses.mean()


def fit(train_loader, val_loader, model, loss_fn, optimizer, scheduler, n_epochs):
    for epoch in range(n_epochs):
        train_loss = train_epoch(train_loader, model, loss_fn, optimizer)
        scheduler.step()
        message = "Epoch: {}/{}. Train set: Average loss: {:.6f}".format(epoch + 1, n_epochs, train_loss)
        val_loss = test_epoch(val_loader, model, loss_fn)
        val_loss /= len(val_loader)
        message += "\nEpoch: {}/{}. Validation set: Average loss: {:.6f}".format(epoch + 1, n_epochs, val_loss)
        print(message)


def train_epoch(train_loader, model, loss_fn, optimizer):
    model.train()
    total_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        anchor, positive, negative = data
        if cuda:
            anchor, positive, negative = anchor.cuda(), positive.cuda(), negative.cuda()
        optimizer.zero_grad()
        loss = loss_fn(model(anchor), model(positive), model(negative))
        total_loss += loss.item()
        loss.backward()
        optimizer.step()
    total_loss /= batch_idx + 1
    return total_loss


def test_epoch(val_loader, model, loss_fn):
    with torch.no_grad():
        model.eval()
        val_loss = 0
        for batch_idx, (data, _) in enumerate(val_loader):
            anchor, positive, negative = data
            if cuda:
                anchor, positive, negative = anchor.cuda(), positive.cuda(), negative.cuda()
            loss = loss_fn(model(anchor), model(positive), model(negative))
            val_loss += loss.item()
    return val_loss


digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
train_dataset = TripletDigits(images[:1280], digits.target[:1280])
test_dataset = TripletDigits(images[1280:1760], digits.target[1280:1760])
batch_size = 128
kwargs = {"num_workers": 1, "pin_memory": True} if cuda else {}
shuffle = "FIXED_ORDER" not in os.environ
train_loader = DataLoader(train_dataset, batch_size=batch_size, shuffle=shuffle, **kwargs)
test_loader = DataLoader(test_dataset, batch_size=batch_size, shuffle=False, **kwargs)

model = EmbeddingNet()
if cuda:
    model.cuda()
loss_fn = TripletLoss(1.0)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
scheduler = lr_scheduler.StepLR(optimizer, 8, gamma=0.1, last_epoch=-1)
fit(train_loader, test_loader, model, loss_fn, optimizer, scheduler, 4)
torch.save(model.state_dict(), "embedding.pth")
