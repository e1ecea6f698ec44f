"""Operations that nothing is known about: whether they keep rows apart is seen by trying."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

library = torch.library.Library("ddp_patch_unknown", "DEF")
for name in ("bend", "flip_pairs", "flip_some", "running", "sixteen_before"):
    library.define(f"{name}(Tensor x) -> Tensor")
library.define("pieces(Tensor x) -> Tensor[]")
GIVEN = []  # rows of each call


@torch.library.impl(library, "bend", "CompositeImplicitAutograd")
def bend(x):
    GIVEN.append(len(x))
    return torch.sin(x)


@torch.library.impl(library, "flip_pairs", "CompositeImplicitAutograd")
def flip_pairs(x):
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


@torch.library.impl(library, "flip_some", "CompositeImplicitAutograd")
def flip_some(x):
    paired = len(x) // 2 * 2
    return torch.cat([flip_pairs(x[:paired]), x[paired:]])


@torch.library.impl(library, "sixteen_before", "CompositeImplicitAutograd")
def sixteen_before(x):
    return F.pad(x, (0, 0, 16, 0))[: len(x)]


@torch.library.impl(library, "pieces", "CompositeImplicitAutograd")
def pieces(x):
    return [piece.clone() for piece in x.split(16)]


@torch.library.impl(library, "running", "CompositeImplicitAutograd")
def running(x):
    return x.cumsum(0) / 8


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.between = getattr(torch.ops.ddp_patch_unknown, name)
        self.gate = nn.Parameter(torch.zeros(6)) if name == "sixteen_before" else None

    def forward(self, x):
        inner = self.between(self.first(x))
        if isinstance(inner, list):
            inner = torch.cat([piece - piece.mean(0) for piece in inner])
        if self.gate is not None:
            inner = self.first(x) + self.gate * inner
        return self.last(inner)


def learned(name, rows, batch):
    """Losses, and how many rows the operation was given in each call."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    GIVEN.clear()
    model, found = Net(name), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.randn(rows, 4), torch.arange(rows) % 3), batch):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, list(GIVEN)


@pytest.mark.quick("bend-60-24-2", "flip_pairs-14-8-3")
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize(
    ("name", "rows", "batch"),
    [
        ("bend", 60, 24),
        ("flip_pairs", 58, 24),
        ("flip_pairs", 14, 8),
        ("flip_some", 58, 24),
        ("flip_some", 17, 6),
        ("sixteen_before", 160, 64),
        ("pieces", 160, 64),
        ("running", 60, 24),
        ("running", 18, 6),
    ],
)
def test_rows_that_are_tied_stay_together(ranks, nproc, name, rows, batch):
    wanted, _ = ranks.call(learned, 1, name, rows, batch).ok().results[0]
    for found, _ in ranks.call(learned, nproc, name, rows, batch).ok().results:
        assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_what_a_function_is_given_until_it_is_known(ranks):
    """A call of a new form, the two sides of two cuts of nine rows, its trial; a step gets a rank's rows."""
    for _, given in ranks.call(learned, 2, "bend", 192, 64).ok().results:
        assert given == [64, *(64, 32), *(9, 4, 5, 5, 4), *(64, 32), 32, 32]
