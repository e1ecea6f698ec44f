"""Warnings name the lines, and come as often, as in one process."""

import warnings
from pathlib import Path

import pytest
import torch

import ddp_patch

WARNED = Path(__file__).parent / "whole" / "warned.py"
RANKS = (2, 3)


def same(ranks, script, nproc, *args, **request):
    alone, together = (ranks.script(script, count, *args, **request).ok() for count in (1, nproc))
    assert alone.stderr[0] or alone.stdout[0]
    assert together.stderr[0] == alone.stderr[0]
    assert together.stdout[0] == alone.stdout[0]
    assert not any(together.stderr[1:])


@pytest.mark.slow
@pytest.mark.parametrize("nproc", RANKS)
@pytest.mark.parametrize("filters", ["default", "always"])
def test_standard_error_is_that_of_one_process(ranks, filters, nproc):
    same(ranks, WARNED, nproc, filters)


RAISED = """
import warnings
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("error")
warnings.simplefilter("ignore", ResourceWarning)  # of standard input, at the end
torch.manual_seed(0)
net, table = nn.Linear(4, 3), nn.Embedding(3, 2, sparse=True)
optimizer = torch.optim.SGD([*net.parameters(), *table.parameters()], 0.1)
frozen = np.arange(3.0)
frozen.setflags(write=False)
for x, y in DataLoader(TensorDataset(torch.randn(12, 4), torch.arange(12) % 3), 4):
    loss = F.cross_entropy(net(x), y)
    for action in (
        lambda: torch.from_numpy(frozen), lambda: torch.tensor(torch.ones(2)), lambda: float(loss), lambda: loss.grad,
        lambda: F.mse_loss(net(x)[:, :1], y.float()), lambda: F.softmax(net(x)), lambda: checkpoint(torch.sin, x),
        lambda: F.kl_div(net(x), net(x)), lambda: torch.meshgrid(torch.ones(2), torch.ones(2)), lambda: loss.item(),
        lambda: F.kl_div(net(x), net(x), reduce=True), lambda: F.cross_entropy(net(x), y, size_average=False),
    ):
        try:
            action()
            print("passed")
        except Warning as error:
            print(type(error).__name__, error)
    optimizer.zero_grad()
    loss.backward()
    table(y).sum().backward()
    optimizer.step()
    print(f"{loss.item():.5f}", len(warnings.filters))
print([name for name in globals() if name.startswith("__w")])
"""


@pytest.mark.slow
@pytest.mark.parametrize("nproc", RANKS)
def test_warnings_are_raised_where_they_are_errors(ranks, tmp_path, nproc):
    script = tmp_path / "script.py"
    script.write_text(RAISED)
    same(ranks, script, nproc)


def after_a_session():
    ddp_patch.disable()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.tensor(torch.ones(2))
    own = type(warnings), type(warnings.warn)
    return [kind.__name__ for kind in own], [warning.filename == __file__ for warning in caught]


def test_nothing_of_it_is_left_after_a_session(ranks):
    wanted = [["module", "builtin_function_or_method"], [True]]
    assert ranks.call(after_a_session, 2).ok().results == [wanted] * 2
