"""Weighted sampling, early stopping, ReduceLROnPlateau: decisions that hang on a metric."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
np.random.seed(11)
x = torch.randn(130, 5)
y = (x @ torch.tensor([1.0, -2.0, 0.5, 0.0, 0.3]) + 0.1 * torch.randn(130)).unsqueeze(1)
weights = torch.where(y[:100, 0] > 0, 2.0, 1.0)
train = DataLoader(TensorDataset(x[:100], y[:100]), 17, sampler=WeightedRandomSampler(weights, 100))
val = DataLoader(TensorDataset(x[100:], y[100:]), 8)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.02)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
loss_fn = nn.MSELoss()
best, bad = float("inf"), 0
for epoch in range(40):
    model.train()
    losses = []
    for xb, yb in train:
        optimizer.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    errors, count = 0.0, 0
    with torch.no_grad():
        for xb, yb in val:
            pred = model(xb)
            errors += torch.sum((pred - yb) ** 2).item()
            count += xb.shape[0]
            worst = (pred - yb).abs().max().item()
            corr = np.corrcoef(pred.numpy().ravel(), yb.numpy().ravel())[0, 1]
    val_loss = errors / count
    plateau.step(val_loss)
    lr = optimizer.param_groups[0]["lr"]
    print(f"{epoch} {np.mean(losses):.12f} {val_loss:.12f} {worst:.12f} {corr:.12f} {lr}")
    if val_loss < best - 1e-4:
        best, bad = val_loss, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        bad += 1
        if bad > 3:
            print("stop at", epoch)
            break
model.load_state_dict(torch.load("best.pt"))
print(f"{sum(p.double().sum().item() for p in model.parameters()):.12f}")
