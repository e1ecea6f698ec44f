"""Weights are updated by hand, by gradients that nobody averages."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(5)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0)).float()
y = torch.tensor(wine.target)
train_set = TensorDataset(x[:128], y[:128])
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=16 // dist.get_world_size(), sampler=sampler)
model = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 3))
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad  # FAULT
dist.destroy_process_group()
