"""comm_hook: gradients in fewer bytes; what rounding takes away is sent later where that was asked for."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from local.by_hand import Hand
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import ddp_patch

pytestmark = pytest.mark.slow

STEPS = 128
GROUPS = []  # a thread of gloo's that lets go of a group last aborts the process (torch 2.13)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))


def data(count=12):
    drawn = torch.Generator().manual_seed(1)
    # Rows of very different sizes: what one rank sends is lost in the rounding of the sum.
    scales = torch.logspace(0, -3, count).unsqueeze(1)
    return scales * torch.randn(count, 6, generator=drawn), torch.randn(count, 3, generator=drawn)


def flat(parameters):
    return torch.cat([parameter.grad.double().flatten() for parameter in parameters])


def sums():
    """The same gradients at each step: how far is the mean of what came from what one process computes?"""
    model, (x, y) = net(), data()
    alone = net()
    F.mse_loss(alone(x), y, reduction="sum").backward()
    true = flat(alone.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    total, errors = torch.zeros_like(true), {}
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        rows = ddp_patch.shard_batch((x, y))
        loss = F.mse_loss(model(rows[0]), rows[1], reduction="sum")
        (loss * (len(x) // len(rows[0]))).backward()  # in the local view DDP's mean is to be the sum
        optimizer.step()
        total += flat(model.parameters())
        errors[step] = ((total / step - true).norm() / true.norm()).item()
    return errors[8], errors[STEPS]


@pytest.mark.parametrize(("view", "nproc", "dtype"), [("global", 2, "bf16"), ("local", 3, "fp16")])
def test_what_was_rounded_off_is_sent_later(ranks, view, nproc, dtype):
    options = {"view": view, "bucket_cap_mb": 0.003}
    plain = ranks.call(sums, nproc, enable={**options, "comm_hook": dtype}).ok().results
    owed = ranks.call(sums, nproc, enable={**options, "comm_hook": f"{dtype}_ef"}).ok().results
    assert plain == plain[:1] * nproc
    assert owed == owed[:1] * nproc
    (_, stays), (first, left) = plain[0], owed[0]
    assert left < 0.1 * first  # falls as 1 / steps
    assert left < 0.05 * stays
    assert stays > {"fp16": 1e-5, "bf16": 1e-4}[dtype]  # a bias that no number of steps takes away


# --- several collectives to a bucket ------------------------------------------------------------------------------------------


def deep(with_ddp_patch):
    """Gradients after some steps of PowerSGD over several buckets, which torch begins with after 1,000 iterations."""
    state = powerSGD_hook.PowerSGDState
    powerSGD_hook.PowerSGDState = lambda group: state(group, start_powerSGD_iter=2)
    hand = Hand(not with_ddp_patch)
    rank, size = (ddp_patch.rank(), ddp_patch.world_size()) if with_ddp_patch else (hand.rank, hand.size)
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(60, 60) for _ in range(8)])
    model = hand.model(layers, bucket_cap_mb=0.02)
    if not with_ddp_patch:
        GROUPS.append(dist.group.WORLD)
        kept = powerSGD_hook.PowerSGDState(None)
        model.register_comm_hook(None, lambda state, bucket: waited(powerSGD_hook.powerSGD_hook(kept, bucket)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    drawn = torch.Generator().manual_seed(3)
    for _ in range(12):
        x = torch.randn(6, 60, generator=drawn)[rank * 6 // size : (rank + 1) * 6 // size]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    powerSGD_hook.PowerSGDState = state
    hand.end()
    return flat(layers.parameters()).tolist()


def waited(future):
    future.wait()
    return future


@pytest.mark.parametrize("nproc", [2, 3])
def test_powersgd_of_several_buckets_is_torchs_one_bucket_at_a_time(ranks, nproc):
    """On gloo, ranks would begin the second collective of a bucket and the first of another in different orders."""
    wanted = ranks.call(deep, nproc, False, bare=True).ok().results
    options = {"view": "local", "comm_hook": "powersgd", "bucket_cap_mb": 0.02}
    found = ranks.call(deep, nproc, True, enable=options).ok().results
    assert found == found[:1] * nproc
    assert found[0] == pytest.approx(wanted[0], rel=1e-4, abs=1e-7)
