"""One replica keeps what its module trains global, however often the script makes a module of that anew."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddp_patch.state import State


def modules_made_anew():
    """A model whose script makes a ``Sequential`` of its layers in each step, beside a head that is called later."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    body, head = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    losses, replicas = [], []
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(64, 5)), 8)):
        out = nn.Sequential(*body.children())(x)
        loss = (head(out) if step > 5 else out).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        replicas.append(len(State.session.replicas.registry.modules()) if State.session else 0)
    torch.set_default_dtype(torch.float32)
    return losses, replicas


def test_modules_that_are_made_anew_of_the_same_layers_have_one_replica(ranks):
    ((wanted, _),) = ranks.call(modules_made_anew, 1).ok().results
    for losses, replicas in ranks.call(modules_made_anew, 2).ok().results:
        assert losses == pytest.approx(wanted, rel=1e-9)
        assert replicas == [1] * 6 + [2] * 2
