"""Numbers that change from call to call: whether an autograd function of the script's looks at them."""

import math

import pytest
import torch
from torch import nn

import ddp_patch
from ddp_patch.deciding.watched_numbers import Looks, WatchedNumber, magnitude


@pytest.mark.parametrize(
    "calculate",
    [
        lambda n, x: x * n,
        lambda n, x: n * x,
        lambda n, x: x / n - n / x,
        lambda n, x: -n * x + (2 - n) ** 2 * x,
        lambda n, x: x.mul(n).add(x, alpha=n),
        lambda n, x: torch.clamp(x, max=n),
        lambda n, x: torch.where(x > n, x, n),
        lambda n, x: x.clone().fill_(n),
        lambda n, x: x**n,
        lambda n, x: isinstance(n, float) * x,
    ],
)
def test_who_calculates_with_a_number_does_not_look_at_it(calculate):
    looks, x = Looks(0, 2), torch.tensor([0.5, 2.0])
    assert torch.equal(calculate(WatchedNumber(0.75, looks), x), calculate(0.75, x))
    assert not looks.any


@pytest.mark.parametrize(
    "look",
    [
        lambda n: n > 0.5,
        lambda n: n < 0.5,
        lambda n: n == 0.5,
        lambda n: bool(n),
        lambda n: bool(2 * n + 1),
        lambda n: int(n),
        lambda n: float(n),
        lambda n: round(n),
        lambda n: abs(n),
        lambda n: n // 1,
        lambda n: n % 1,
        lambda n: f"{n:.1f}",
        lambda n: str(n),
        lambda n: n.is_integer(),
        math.exp,
        math.floor,
        lambda n: min(n, 1.0),
        lambda n: torch.full((), n),
        lambda n: torch.ones(()) * n,
        lambda n: n * torch.ones(3),
        lambda n: torch.arange(0.0, n),
    ],
)
def test_who_looks_is_noted(look):
    looks = Looks(0, 2)
    look(WatchedNumber(0.75, looks))
    assert looks.any


def test_numbers_of_other_magnitudes_are_told_apart():
    names = [magnitude(value) for value in (0.0, -0.0, 1.0, -1.0, 1e-3, 1e3, math.inf, math.nan)]
    assert len(set(names)) == len(names)
    assert magnitude(0.6) == magnitude(0.9)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.factor * grad, None


class Adversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.domain = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, factor):
        return self.domain(Reversed.apply(self.features(x).tanh(), factor))


def gathers(steps):
    torch.manual_seed(0)
    model = Adversarial()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(steps):
        loss = model(torch.randn(8, 4), 2 / (1 + math.exp(-i / 10)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(gathers.collectives for gathers in ddp_patch.report().ledger.gathers.values())


def test_a_factor_that_changes_in_each_step_costs_no_gathers(ranks):
    few, many = (ranks.call(gathers, 2, steps).ok().results for steps in (20, 40))
    assert few == many  # but for those of the first calls
