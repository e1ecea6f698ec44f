"""Stochastic weight averaging, with BatchNorm's statistics taken anew for the average."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0), dtype=torch.float32)
y = torch.tensor(wine.target)
loader = DataLoader(TensorDataset(x, y), batch_size=30, shuffle=True)
model = nn.Sequential(nn.Linear(13, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
flat = SWALR(optimizer, swa_lr=0.02, anneal_epochs=1)
for epoch in range(4):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
    if epoch >= 2:
        averaged.update_parameters(model)
        flat.step()
    else:
        cosine.step()
    print(epoch, f"{loss.item():.6f}", f"{optimizer.param_groups[0]['lr']:.5f}")
update_bn(loader, averaged)
averaged.eval()
with torch.no_grad():
    print(f"accuracy {(averaged(x).argmax(1) == y).float().mean().item():.4f}")
torch.save(averaged.state_dict(), "averaged.pt")
