"""Rank 0 prints the loss of its own rows."""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def mean(value):
    tensor = torch.tensor(float(value))
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return mean(hits) * dist.get_world_size() / len(loader.dataset)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    dataset = TensorDataset(x[:320], y[:320])
    sampler = DistributedSampler(dataset, shuffle=True)
    train = DataLoader(dataset, batch_size=40 // size, sampler=sampler)
    held = TensorDataset(x[320:480], y[320:480])
    test = DataLoader(held, batch_size=40, sampler=DistributedSampler(held, shuffle=False))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in train:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
        score = accuracy(model, test)
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(train):.4f} accuracy {score:.4f}")  # FAULT
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
