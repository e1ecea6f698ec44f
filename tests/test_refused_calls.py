"""Model calls that cannot be followed: an error on every rank that names module and argument."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Hidden:
    first_rows = False


def hidden():  # where nothing that forward names tells
    return Hidden.first_rows


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, other=None):
        out = self.layer(x)
        if other is not None:
            out = out + other.sum(-1)[: len(out), None]
        return out[:1] if hidden() else out


def hook_on_a_sparse_gradient():
    words = nn.EmbeddingBag(10, 3, sparse=True)
    words.weight.register_hook(lambda gradient: gradient * 2)
    optimizer = torch.optim.SparseAdam(list(words.parameters()), 0.1)
    for (index,) in DataLoader(TensorDataset(torch.arange(16).view(8, 2) % 10), 4):
        words(index).sum().backward()
        optimizer.step()


def said(kind):
    torch.manual_seed(0)
    if kind == "sparse hook":
        try:
            hook_on_a_sparse_gradient()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.randn(24, 4)), 8)
    other = DataLoader(TensorDataset(torch.randn(24, 4)), 6)
    steps = 0
    try:
        for (x,), (y,) in zip(loader, other, strict=False):
            if kind == "two batches":
                model(x, y)
            elif kind == "ambiguous":
                model(x, torch.ones(8, 8))
            else:
                model(x).sum().backward()
                optimizer.step()
                Hidden.first_rows = steps > 0
                steps += 1
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sparse hook", ["A hook on a parameter of shape (10, 3)", "sparse gradient", "sparse=False"]),
        ("two batches", ["Net was called with rows of two different batches", "(8, 4)", "(6, 4)"]),
        ("ambiguous", ["Net: dimensions 0 and 1 of 'other'", "cannot be told", "batch_dims={'other': None}"]),
        ("not followed", ["Net returned a tensor of shape (1, 3)", "cannot be told which rows"]),
    ],
)
def test_a_call_that_cannot_be_followed_is_refused_on_every_rank(ranks, kind, words):
    for result in ranks.call(said, 2, kind).ok().results:
        assert result.startswith("BatchError: ")
        for word in words:
            assert word in result
