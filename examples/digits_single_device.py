"""
$ python examples/digits_single_device.py
$ DDP_PATCH_NPROC=2 python examples/digits_single_device.py  # the same, on two processes

Written for one GPU and never for more: a residual MLP on handwritten digits, gradient clipping, a step schedule, a
dataset class of its own that returns dicts. There is no nn.DataParallel to be found here, nor any need for one.
"""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, random_split

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="residual MLP on 8x8 digits")
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--save", default="digits_single_device.pt", help="where the last checkpoint goes")
args = parser.parse_args()

batch_size = 50  # the last batch of an epoch has 37
hidden = 96  # width of the residual stream
learning_rate = 2e-3
grad_clip = 1.0  # clip gradients at this norm
decay_every, decay = 4, 0.5  # multiply the learning rate by decay once in decay_every epochs

torch.manual_seed(42)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Digits(Dataset):
    def __init__(self):
        self.pixels, self.target = load_digits(return_X_y=True)

    def __len__(self):
        return len(self.target)

    def __getitem__(self, index):
        return {"image": torch.from_numpy(self.pixels[index]).float() / 16, "label": int(self.target[index])}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


train_set, val_set = random_split(Digits(), [1437, 360])
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
val_loader = DataLoader(val_set, batch_size=batch_size)

model = nn.Sequential(nn.Linear(64, hidden), Block(hidden), Block(hidden), nn.LayerNorm(hidden), nn.Linear(hidden, 10))
model.to(device)
print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train_loader)} steps per epoch")
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=decay_every, gamma=decay)


def evaluate():
    model.eval()
    hits = []
    with torch.no_grad():
        for batch in val_loader:
            prediction = model(batch["image"].to(device)).argmax(1)
            hits.append(prediction.eq(batch["label"].to(device)).float())
    return torch.cat(hits).mean().item()


for epoch in range(args.epochs):
    model.train()
    losses, norms = [], []
    for batch in train_loader:
        image, label = batch["image"].to(device), batch["label"].to(device)
        loss = criterion(model(image), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(clip_grad_norm_(model.parameters(), grad_clip).item())
        optimizer.step()
        losses.append(loss.item())
    lr = scheduler.get_last_lr()[0]
    scheduler.step()
    loss, norm = sum(losses) / len(losses), max(norms)
    print(f"epoch {epoch:2d} | loss {loss:.4f} | largest grad norm {norm:.3f} | val acc {evaluate():.4f} | lr {lr:.1e}")

torch.save(model.state_dict(), args.save)
