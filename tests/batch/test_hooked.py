"""Full backward hooks of modules: what they see costs nothing that they do not ask for."""

import gc
import weakref

import pytest
import torch
from torch import nn

import ddp_patch


def looks(name):
    """Train a model with full backward hooks on each layer; count gathers, and tell what the hooks were given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []

    def keep(layer, into, out):
        seen.append([type(layer).__name__, list(out[0].shape), into[0] is None, *globals()[name](out[0])])

    for layer in model:
        layer.register_full_backward_hook(keep)
    for x in torch.utils.data.DataLoader(torch.randn(32, 8), 8):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [sum(each.collectives for each in ddp_patch.report().ledger.gathers.values()), seen[-3:]]


def nothing(grad):
    return []


def says_what(grad):
    return [type(grad).__qualname__, grad.dtype == torch.float32, grad.requires_grad]


@pytest.mark.parametrize("hook", ["nothing", "says_what"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_hooks_that_ask_for_no_values_gather_nothing(ranks, nproc, hook):
    for gathers, seen in ranks.call(looks, nproc, hook).ok().results:
        assert not gathers
        assert [entry[:3] for entry in seen] == [
            ["Linear", [8, 4], False],
            ["ReLU", [8, 8], False],
            ["Linear", [8, 8], True],
        ]


def graphs_left():
    """Count the graphs of hooked layers that are still there once their outputs are gone, without a collection."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    torch.optim.SGD(model.parameters(), 0.1)
    for layer in model:
        layer.register_full_backward_hook(lambda layer, into, out: None)
    gc.collect()
    gc.disable()
    left = []
    for x in torch.utils.data.DataLoader(torch.randn(48, 8), 8):
        out = model(x)
        left.append(weakref.ref(out.grad_fn._node))
        del out, x
    alive = sum(node() is not None for node in left[3:])
    gc.enable()
    return alive


def test_a_graph_goes_with_its_output(ranks):
    assert ranks.call(graphs_left, 2).ok().results == [0, 0]
