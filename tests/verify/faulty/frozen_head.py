"""A layer is left out of the optimizer in the migration."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_wine
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
wine = load_wine()
x = torch.tensor((wine.data - wine.data.mean(0)) / wine.data.std(0)).float()
y = torch.tensor(wine.target)
rows = torch.randperm(len(x))
train_set = TensorDataset(x[rows[:128]], y[rows[:128]])
test_x, test_y = x[rows[128:]], y[rows[128:]]
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=16 // world, sampler=sampler)
model = nn.Sequential(nn.Linear(13, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 3))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model[:3].parameters(), lr=0.05, momentum=0.9)  # FAULT
best = 0.0
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    if rank == 0:
        print(f"epoch {epoch} accuracy {accuracy:.4f}")
    if accuracy >= best:
        best = accuracy
        if rank == 0:
            torch.save({"epoch": epoch, "model": model.state_dict(), "best": best}, "best.pt")
dist.destroy_process_group()
