"""Batches that a script writes to one row at a time: the rest of them stays where it is, and models stay on rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch


class Copies(TorchDispatchMode):
    """Counts how often as many rows as a rank has are copied."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.count = rows, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[0].shape[:1] == (self.rows,):
            self.count += 1
        return func(*args, **(kwargs or {}))


def one_by_one(size):
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(2 * size, 3, 4).double(), torch.arange(2 * size) % 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, copies = [], []
    for x, y in DataLoader(dataset, size):
        with Copies(size // 2) as counted:
            for i in range(size):
                x[i] = x[i].flip(0) * 2  # as augmentation does
                if y[i] > 1:
                    x[i].mul_(0.5)
            copies.append(counted.count)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses += [loss.item(), x.sum().item(), x[0, 0, 0].item()]
    report = ddp_patch.report()
    return losses, copies, [] if report is None else [*report.ledger.on_batches.values()]


def test_rows_are_written_one_by_one_without_copies_of_the_others(ranks):
    wanted, *_ = ranks.call(one_by_one, 1, 16).ok().results[0]
    for losses, copies, on_batches in ranks.call(one_by_one, 2, 16).ok().results:
        assert losses == pytest.approx(wanted, rel=1e-9)
        assert max(copies) <= 2
        assert on_batches == []
