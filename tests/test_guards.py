"""What a forward may branch on is walked again when something changed, and torch's own layers are not walked again."""

import functools
import inspect
import json
import operator
import sys

import numpy as np
import pytest
import torch
from torch import nn

import ddp_patch
from ddp_patch.deciding.code import ANY, names_in
from ddp_patch.deciding.guards import Guards

LOG = []


class Net(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.LayerNorm(2), nn.BatchNorm1d(2)) for _ in range(depth)])
        self.sizes, self.table, self.kept = (2, 3), {}, torch.zeros(2)
        self.functions = []

    def forward(self, x):
        LOG.append(len(x))
        return self.layers(x) * len(self.table) * len(self.sizes) + self.kept


def guarding(module):
    return Guards(list(module.modules()), id)


def steps_of_python(function):
    """Count the calls of functions and generators that are written in Python."""
    counted = []
    sys.setprofile(lambda frame, event, _: counted.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(counted)


def test_a_change_costs_as_much_in_a_model_of_many_layers():
    costs = []
    for depth in (1, 100):
        guards = guarding(Net(depth))
        LOG.append(0)
        assert guards.changed()
        LOG.append(0)
        costs.append(steps_of_python(guards.changed))
    buffers = 3 * 100  # each BatchNorm's flags are noted, by one call and one step of a generator
    assert costs[1] < costs[0] + 4 * buffers


def one_more(module):
    module.functions.append(lambda x: x * len(LOG))


def behind_torchs_back(module):
    vars(module)["function"] = lambda x: x * len(LOG)


def own_layer(module):
    class Own(nn.LayerNorm):
        def forward(self, x):
            return x * len(LOG)

    module.layers[0][0].__class__ = Own


@pytest.mark.parametrize("change", [one_more, own_layer, behind_torchs_back])
def test_code_that_layers_get_is_walked_when_something_else_changed(change):
    module = Net()
    guards = guarding(module)
    change(module)
    LOG.append(0)
    assert guards.changed()
    assert any("lambda" in name or "Own" in name for name in guards.codes.values())


def test_a_tensor_that_followed_another_is_the_one_that_is_noted():
    module = Net()
    guards = guarding(module)
    vars(module)["kept"] = torch.zeros(2)
    LOG.append(0)
    assert guards.changed()
    assert not guards.changed()
    module.kept.requires_grad_()
    assert guards.changed()


def test_an_attribute_that_was_set_is_looked_at_again():
    module = Net()
    guards = guarding(module)
    module.sizes = (2, 4)
    assert guards.changed(layers_did=True)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.header, self.keeps = 0, [0], self.kept
        self.header.append(self.seen)

    def kept(self):
        return self.inner

    def save(self):
        return self.seen, self.outer

    def forward(self, x):
        return x * self.scale


class Makes(Counting):
    def forward(self, x):
        return Counting(), self.scale


def test_names_that_a_forward_may_read_are_those_of_the_functions_that_it_may_come_to():
    read = guarding(Counting()).names_read()
    assert {"scale", "inner"} <= read
    assert not {"seen", "header", "outer"} & read
    assert {"scale", "seen"} <= guarding(Makes()).names_read()


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0) if ctx.module.seen > 3 else grad, None


class Late:
    def __init__(self, net):
        self.late = net.seen > 3


class LateLayer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.late = net.seen > 3


class Shown(json.JSONEncoder):
    def default(self, thing):
        return thing.seen


MAKES = {"late": Late}
SEEN, ASKS, OF_SEEN, TEXT = "seen", getattr, operator.attrgetter("seen"), "{0.seen}"
READ_IN_WAYS = {
    "an attrgetter": lambda net, x: OF_SEEN(net),
    "one that it holds": lambda net, x: net.asks(net),
    "another name of getattr": lambda net, x: ASKS(net, net.which),
    "a partial function": lambda net, x: net.part(),
    "a name of a table": lambda net, x: getattr(net, {"a": SEEN}["a"]),
    "a name with a default": lambda net, x: getattr(net, net.which, "none"),
    "a name that is joined": lambda net, x: getattr(net, "".join(["se", "en"])),
    "a name of another's": lambda net, x: getattr(getattr(net, "me", None)[0], net.which),
    "one of two names": lambda net, x: getattr(net, "scale" if x else SEEN),
    "all arguments": lambda net, x: getattr(*net.me, SEEN),
    "text that runs": lambda net, x: eval(net.text),
    "text that is formatted": lambda net, x: TEXT.format(net),
    "object's": lambda net, x: object.__getattribute__(net, net.which),
    "static": lambda net, x: inspect.getattr_static(net, SEEN),
    "what is pickled": lambda net, x: net.__getstate__(),
    "how it is shown": lambda net, x: repr(net),
    "its backward": lambda net, x: Centred.apply(x, net),
    "a class of a table": lambda net, x: MAKES["late"](net),
    "a class that it holds": lambda net, x: net.kind(net),
    "a class among its defaults": lambda net, x, kind=LateLayer: kind(net),
    "what a library calls": lambda net, x: json.dumps(net, cls=Shown),
    "a vectorized function": lambda net, x: net.vectorized(x),
}


class ReadInSomeWay(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.seen, self.way, self.which, self.text, self.me = 0, way, "se" + "en", "net.se" + "en", [self]
        self.kind, self.vectorized = LateLayer, np.vectorize(functools.partial(lambda net, x: net.seen, self))
        self.asks, self.part, self.scale = operator.attrgetter("seen"), functools.partial(getattr, self, "seen"), 1.0

    def extra_repr(self):
        return f"seen={self.seen}" if self.way is READ_IN_WAYS["how it is shown"] else ""

    def forward(self, x):
        return self.way(self, x)


@pytest.mark.parametrize("way", READ_IN_WAYS)
def test_a_counter_that_a_forward_reads_in_some_way_is_found(way):
    assert {"seen", ANY} & guarding(ReadInSomeWay(READ_IN_WAYS[way])).names_read()


@pytest.mark.parametrize(
    "way",
    [
        lambda net: getattr(net, "scale", None),
        lambda net: getattr(getattr(net, "me", None)[0], "scale", 1)(getattr(net, "other", net)),
        lambda net: f"{net.scale:.3f}" + "{1} {0} {a}".format(*net.me, a=2),
        lambda net: net.eval(),
    ],
)
def test_a_name_that_is_written_is_no_other(way):
    assert ANY not in names_in(way.__code__).mentioned


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(2, 2), 0
        self.header = [0, self.seen]

    def save(self):
        return self.seen

    def forward(self, x):
        return self.layer(x)


def trained_while_the_script_counts():
    torch.manual_seed(0)
    model = Counted()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(40):
        model(torch.randn(8, 2)).square().mean().backward()
        optimizer.step()
        model.seen += 8
    ledger = ddp_patch.report().ledger
    return [*ledger.on_batches.values(), *ledger.on_whole.values()]


def test_what_only_the_script_counts_keeps_no_model_from_rows(ranks):
    assert ranks.call(trained_while_the_script_counts, 2).ok().results == [[], []]
