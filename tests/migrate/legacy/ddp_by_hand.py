"""A script that was made rank-aware by hand: torchrun --nproc-per-node 4 ddp_by_hand.py"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29517")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def cleanup():
    dist.destroy_process_group()


def reduce_mean(tensor, nprocs):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    rt /= nprocs
    return rt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--no-shuffle", action="store_true")
    args = parser.parse_args()

    setup()
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    local_rank = int(os.environ.get("LOCAL_RANK", args.local_rank))
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(8)
    if rank == 0:
        os.makedirs("ckpt", exist_ok=True)
        print("world size is whatever torchrun says")
    dist.barrier()

    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    train_set = TensorDataset(x[:1440], y[:1440])
    train_sampler = DistributedSampler(train_set, shuffle=not args.no_shuffle)
    train_loader = DataLoader(train_set, batch_size=args.batch_size // world_size, sampler=train_sampler)
    val_set = TensorDataset(x[1440:], y[1440:])
    val_loader = DataLoader(val_set, batch_size=100, shuffle=False)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[local_rank] if torch.cuda.is_available() else None)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

    best = 0.0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros((), device=device)
        for inputs, targets in train_loader:
            inputs, targets = inputs.to(device), targets.to(device)
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reduced = reduce_mean(loss.detach(), world_size)
            total += reduced

        # every rank evaluates everything
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, targets in val_loader:
                inputs, targets = inputs.to(device), targets.to(device)
                correct += (model.module(inputs).argmax(1) == targets).sum().item()
        accuracy = correct / len(val_set)
        if rank == 0:
            # one line for the log
            print(f"epoch {epoch} loss {total.item() / len(train_loader):.6f} accuracy {accuracy:.4f}")
            if accuracy > best:
                torch.save(model.module.state_dict(), "ckpt/best.pt")
        best = max(best, accuracy)
    cleanup()


if __name__ == "__main__":
    main()
