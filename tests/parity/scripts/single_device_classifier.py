"""A single-device classifier: no DataParallel, a learning-rate schedule, gradient clipping, a whole-module checkpoint."""

import copy

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Points(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 10)
        self.y = (self.x[:, 0] * self.x[:, 1] > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i], "index": i, "name": f"sample{i}"}


train_set, val_set = random_split(Points(145), [101, 44])
train = DataLoader(train_set, batch_size=16, shuffle=True)
val = DataLoader(val_set, batch_size=44)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32, bias=False), nn.BatchNorm1d(32), nn.Tanh())
        self.head = nn.Linear(32, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x, scale=1.0):
        return self.head(self.body(x)) * scale


model = Classifier().to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
best = 0.0
for epoch in range(3):
    model.train()
    total, seen = 0.0, 0
    for batch in train:
        x, y = batch["x"].to(device), batch["y"].to(device)
        out = model(x, scale=1.5)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total += loss.item() * len(y)
        seen += y.numel()
        print(f"{loss:.12f} {norm.item():.12f} {batch['name'][0]} {batch['name'][-1]} {batch['index'].sum().item()}")
    scheduler.step()
    model.eval()
    with torch.no_grad():
        hits = torch.cat([model(b["x"]).max(1)[1].eq(b["y"]).float() for b in val])
    accuracy = hits.mean().item()
    print(f"epoch {epoch} loss {total / seen:.12f} accuracy {accuracy:.12f} lr {scheduler.get_last_lr()[0]:.6f}")
    if accuracy > best:
        best = accuracy
        frozen = copy.deepcopy(model)
        torch.save(model, "model.pt")
loaded = torch.load("model.pt", weights_only=False)
print(type(loaded).__name__, type(model).__name__, isinstance(model, Classifier), type(frozen).__name__)
x = torch.linspace(-1, 1, 50).view(5, 10)
print(abs(model(x).sum().item() - model.head(model.body(x)).sum().item()) < 1e-12)
for (name, a), b in zip(model.state_dict().items(), loaded.state_dict().values()):
    print(name, f"{a.double().sum().item():.12f} {b.double().sum().item():.12f}")
print([p.grad is None for p in model.parameters()], len(optimizer.state))
