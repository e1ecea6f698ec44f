"""Whole-batch contrastive loss; DataParallel wraps a submodule, the projection head stays outside."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
data = torch.randn(90, 12)
labels = torch.arange(90) % 6
loader = DataLoader(TensorDataset(data, labels), batch_size=26, shuffle=True)


class SupCon(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.DataParallel(nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU()))
        self.projection = nn.Linear(20, 8)
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, views, labels):
        z = F.normalize(self.projection(self.encoder(views)), dim=1)
        labels = labels.repeat(2)
        logits = z @ z.t() / self.temperature
        itself = torch.eye(len(z), dtype=torch.bool)
        logits = logits.masked_fill(itself, -1e9)
        same = (labels[:, None] == labels[None, :]) & ~itself
        log_prob = logits - logits.logsumexp(1, keepdim=True)
        return -(log_prob * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


model = SupCon()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    for x, y in loader:
        views = torch.cat([x, x + 0.1 * torch.randn_like(x)], dim=0)
        loss = model(views, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.12f} {model.temperature.item():.12f} {tuple(views.shape)}")
for name, value in model.state_dict().items():
    print(name, f"{value.double().norm().item():.12f}")
