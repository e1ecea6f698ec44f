"""
$ python examples/diabetes_regression.py
$ DDP_PATCH_NPROC=2 python examples/diabetes_regression.py  # the same, on two processes

Predicts how a patient's diabetes progresses over a year (442 patients, 10 measurements). A weighted sampler shows
severe cases more often; the validation error decides the learning rate, what is kept and when to stop. Processes that
disagreed about any of these would wait for each other for ever.
"""

import argparse

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import ddp_patch; ddp_patch.enable()  # fmt: skip

parser = argparse.ArgumentParser(description="MLP on the diabetes data")
parser.add_argument("--epochs", type=int, default=60, help="at most; it usually stops earlier")
parser.add_argument("--patience", type=int, default=8, help="epochs without a better model before stopping")
parser.add_argument("--save", default="diabetes_regression.pt", help="where the best model goes")
args = parser.parse_args()

torch.manual_seed(7)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

data = load_diabetes()
x = torch.tensor(data.data, dtype=torch.float32) * len(data.data) ** 0.5  # unit variance
y = torch.tensor(data.target, dtype=torch.float32).unsqueeze(1)  # 25 to 346
mean, std = y.mean(), y.std()
order = torch.randperm(len(x))
train_idx, val_idx = order[:342], order[342:]

severe = y[train_idx, 0] > 200
weights = torch.where(severe, 2.0, 1.0)  # severe cases are fewer, and matter more
sampler = WeightedRandomSampler(weights, num_samples=len(train_idx), replacement=True)
train_loader = DataLoader(TensorDataset(x[train_idx], y[train_idx]), batch_size=32, sampler=sampler)
val_loader = DataLoader(TensorDataset(x[val_idx], y[val_idx]), batch_size=32)

model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
criterion = nn.MSELoss()


@torch.no_grad()
def evaluate():
    """Root mean square and mean absolute error, in the units of the data."""
    model.eval()
    squared, absolute = 0.0, 0.0
    for xb, yb in val_loader:
        error = model(xb.to(device)) * std + mean - yb.to(device)
        squared += error.pow(2).sum().item()
        absolute += error.abs().sum().item()
    n = len(val_loader.dataset)
    return (squared / n) ** 0.5, absolute / n


best, bad_epochs = float("inf"), 0
for epoch in range(args.epochs):
    model.train()
    running = 0.0
    for xb, yb in train_loader:
        xb, yb = xb.to(device), (yb.to(device) - mean) / std
        loss = criterion(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
    rmse, mae = evaluate()
    scheduler.step(rmse)
    lr = optimizer.param_groups[0]["lr"]
    print(f"epoch {epoch:2d}  train {running / len(train_loader):.4f}  rmse {rmse:.3f}  mae {mae:.3f}  lr {lr:.2e}")
    if rmse < best:
        best, bad_epochs = rmse, 0
        torch.save(model.state_dict(), args.save)
        continue
    bad_epochs += 1
    if bad_epochs == args.patience:
        print(f"no better model for {args.patience} epochs, stopping")
        break

model.load_state_dict(torch.load(args.save))
rmse, mae = evaluate()
guess = (y[val_idx] - mean).pow(2).mean().sqrt().item()  # rmse of answering the mean every time
print(f"best model: rmse {rmse:.3f}  mae {mae:.3f}  (the mean as the answer: rmse {guess:.3f})")
