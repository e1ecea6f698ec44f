"""What a module holds is walked once, and again when something in it was replaced by a way that nobody hears of."""

import pytest
from torch import nn

from ddp_patch.calling.census import Census


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(), nn.ReLU(), nn.Linear(3, 3, bias=False))


def swapped(module):
    layers = module._modules
    layers["0"], layers["3"] = layers["3"], layers["0"]


def filled(module):
    module[1]._modules["0"] = nn.Linear(3, 3)


CHANGES = {
    "a parameter in another's place": lambda module: module[0]._parameters.update(
        weight=nn.Parameter(module[0].weight.data)
    ),
    "a parameter that becomes None": lambda module: module[0]._parameters.update(bias=None),
    "a parameter that is gone": lambda module: module[0]._parameters.pop("bias"),
    "the first parameter of a layer": lambda module: module[2]._parameters.update(
        slope=nn.Parameter(module[0].bias.data)
    ),
    "a layer in another's place": lambda module: module._modules.update({"2": nn.Tanh()}),
    "the last layer that is gone": lambda module: module._modules.popitem(),
    "layers that change places": swapped,
    "the first layer of an empty one": filled,
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_is_replaced_is_found(how):
    census, module = Census(), net()
    before = census.of(module)
    assert census.of(module) is before
    CHANGES[how](module)
    after = census.of(module)
    assert after is not before
    assert after.layers == list(module.modules())
    assert [id(parameter) for parameter in after.parameters] == [id(parameter) for parameter in module.parameters()]


def test_names_alone_are_no_other_content():
    census, module = Census(), net()
    before = census.of(module)
    module[0]._parameters = {f"{name}_": value for name, value in module[0]._parameters.items()}
    census.noted("_parameters")
    assert [*map(id, census.of(module).parameters)] == [*map(id, before.parameters)]
