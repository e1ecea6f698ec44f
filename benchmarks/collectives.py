"""How many collectives, and how many bytes, does an optimizer step cost under ddp_patch?

    python benchmarks/collectives.py

Counted by ddp_patch's own ledger on 2 ranks, over steps after the first ones, from which it learns.
"""

import os
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch

WARM, STEPS, BATCH = 3, 10, 64
KINDS = ["gradient bucket", "gradient average", "all_reduce", "all_gather", "all_gather_object"]


def net():
    """Make a small classifier."""
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))


class WithSpare(nn.Module):
    """Half of its parameters are never used."""

    def __init__(self):
        super().__init__()
        self.net, self.spare = net(), net()

    def forward(self, x):
        """Use one half."""
        return self.net(x)


def loader(backwards=1):
    """Make batches for all steps."""
    count = (WARM + STEPS) * backwards * BATCH
    return DataLoader(TensorDataset(torch.randn(count, 32), torch.randint(0, 10, (count,))), BATCH)


def classify(model, every=1, metric=False):
    """Train a classifier, stepping after every so many batches; yields after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i, (x, y) in enumerate(loader(every)):
        out = model(x)
        loss = F.cross_entropy(out, y)
        (loss / every if every > 1 else loss).backward()
        if metric:
            (out.argmax(1) == y).sum().item()
            loss.item()
        if i % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
            yield


def adversarial():
    """Train a GAN; yields after each pair of steps."""
    critic, generator = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)), nn.Linear(8, 32)
    first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (critic, generator))
    for x, _ in loader():
        fake = generator(torch.randn(len(x), 8))
        first.zero_grad()
        F.softplus(-critic(x)).mean().backward()
        F.softplus(critic(fake.detach())).mean().backward()
        first.step()
        second.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        second.step()
        yield


LOOPS = {
    "plain loop": lambda: classify(net()),
    "plain loop, loss and accuracy read": lambda: classify(net(), metric=True),
    "accumulation over 8 batches": lambda: classify(net(), every=8),
    "half of the parameters unused": lambda: classify(WithSpare()),
    "GAN: three backwards, two optimizer steps": lambda: adversarial(),
}


def rank():
    """What every rank runs: each loop in a session of its own; rank 0 prints."""
    for name, loop in LOOPS.items():
        torch.manual_seed(0)
        with ddp_patch.enable():
            before = {}
            for step, _ in enumerate(loop(), 1):
                ledger = ddp_patch.report().ledger
                if step == WARM:
                    before = {kind: (ledger.collectives[kind], ledger.collective_bytes[kind]) for kind in KINDS}
            calls = [(ledger.collectives[kind] - before[kind][0]) / STEPS for kind in KINDS]
            size = sum(ledger.collective_bytes[kind] - before[kind][1] for kind in KINDS) / STEPS
            gradients = sum(ledger.collective_bytes[kind] - before[kind][1] for kind in KINDS[:2]) / STEPS
            print(
                f"{name:42}"
                + "".join(f"{call:>10.2f}" for call in calls)
                + f"{gradients:>14,.0f}{size - gradients:>10,.0f}"
            )


def main():
    """Start two ranks of this script."""
    if "RANK" in os.environ:
        rank()
        return
    heads = ["buckets", "averages", "sums", "gathers", "objects"]
    print(
        "per optimizer step:"
        + " " * 23
        + "".join(f"{head:>10}" for head in heads)
        + f"{'gradient bytes':>14}{'others':>10}"
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__]
    subprocess.run([sys.executable, *launch], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)


if __name__ == "__main__":
    main()
