"""What a forward puts into the containers that it is given, or takes out, is in those of the script."""

import collections
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.layout import Layout
from ddp_patch.batch.sizes import BatchSize
from ddp_patch.calling.calls import Call
from ddp_patch.calling.containers import Containers
from ddp_patch.structure import map_leaves


class Attributes(dict):
    """A dict whose items are its attributes."""

    def __init__(self, **items):
        super().__init__(items)
        self.__dict__ = self


class Output(collections.OrderedDict):
    """A dict whose items are attributes as well, and which lets nobody take them out."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        vars(self)[key] = value

    def __delitem__(self, key):
        raise TypeError

    clear = pop = __delitem__


@dataclasses.dataclass(slots=True)
class Slots:
    x: object


@dataclasses.dataclass
class Fields:
    x: object
    more: dict = dataclasses.field(default_factory=dict)


def written(own, forward):
    """Have a forward get copies whose tensors are doubled, and let the script's containers have what it wrote."""
    args = (own,)
    given = map_leaves(lambda leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf, args)
    containers = Containers((args, {}), (given, {}))
    return containers.write_back(containers.with_writes(forward(*given)))


def test_what_is_not_written_to_is_left_alone():
    own = {"x": torch.ones(2), "more": [torch.ones(2), {}]}
    held = [*own.values(), *own["more"]]
    assert written(own, lambda given: given) is own
    assert all(a is b for a, b in zip([*own.values(), *own["more"]], held, strict=True))


@pytest.mark.parametrize("own", [{"x": torch.ones(2)}, Attributes(x=torch.ones(2)), Output(x=torch.ones(2))])
def test_a_dict_gets_items_and_keeps_the_others(own):
    x = own["x"]

    def forward(given):
        assert given["x"].sum() == 4
        given["y"], given["again"] = given["x"] + 1, [given["x"]]

    written(own, forward)
    assert own["x"] is own["again"][0] is x
    assert list(own) == ["x", "y", "again"]
    assert own["y"].tolist() == [3, 3]
    assert type(own) is dict or own.y is own["y"]


def test_a_dict_loses_items_and_changes_their_order():
    own = {"x": torch.ones(2), "y": torch.zeros(2), "z": 1}
    x = own["x"]

    def forward(given):
        del given["y"]
        given["x"] = given.pop("x")

    written(own, forward)
    assert list(own) == ["z", "x"]
    assert own["x"] is x


def test_a_list_inside_of_another_container_is_written_to():
    own = {"skips": [torch.ones(2), torch.zeros(2)]}
    skips, (first, _) = own["skips"], own["skips"]
    assert written(own, lambda given: [given["skips"].pop(), given["skips"]])[1] is skips
    assert own["skips"] is skips
    assert len(skips) == 1
    assert skips[0] is first


@pytest.mark.parametrize("kind", [Slots, Fields])
def test_a_dataclass_is_written_to(kind):
    own = kind(torch.ones(2))
    written(own, lambda given: setattr(given, "x", given.x + 1))
    assert own.x.tolist() == [3, 3]


def test_a_dataclass_gets_attributes_that_are_no_fields():
    own = Fields(torch.ones(2))
    more = own.more

    def forward(given):
        given.extra, given.more["y"] = given.x, 1

    x = own.x
    written(own, forward)
    assert own.extra is own.x is x
    assert own.more is more
    assert more == {"y": 1}


def test_containers_may_refer_to_each_other_by_attributes():
    own = Fields(torch.ones(2))
    own.parent = {"child": own}
    written(own, lambda given: given.parent.update(y=1))
    assert own.parent["y"] == 1


def test_containers_are_put_back():
    own, inner = [torch.ones(2), {}], {}
    containers = Containers((tuple(own), {"inner": inner}), (tuple(own), {"inner": inner}))
    own[1]["y"] = inner["z"] = 1
    with containers.as_before():
        assert own[1] == inner == {}
    assert own[1] == {"y": 1}
    containers.put_back()
    assert own[1] == inner == {}


class Predicts(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, batch):
        batch["out"] = self.net(batch["x"])
        batch["calls"] = batch.get("calls", 0) + 1
        return batch


def predictions():
    """Losses of a model that writes to the dict of its batch, and what does not run on rows."""
    torch.manual_seed(0)
    model, said = Predicts(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(3, (40,))), 8):
        batch = {"x": x, "y": y}
        assert model(batch) is batch or len(said) == 0
        assert batch["x"] is x
        loss = F.cross_entropy(batch["out"], batch["y"]) * batch["calls"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    report = ddp_patch.report()
    return said, {} if report is None else dict(report.ledger.on_batches)


def test_a_model_that_writes_to_the_dict_of_its_batch_runs_on_rows(ranks):
    ((wanted, _),) = ranks.call(predictions, 1).ok().results
    for said, on_batches in ranks.call(predictions, 2).ok().results:
        assert said == pytest.approx(wanted, rel=1e-5)
        assert on_batches == {}


def test_a_module_inside_is_given_numbers_for_sizes_of_batches():
    size = BatchSize.of(Layout((4, 4), 0, 8))
    call = Call(None, None, (size, [size, 1]), {"sizes": (2, size), "x": 3}).with_numbers()
    assert [type(call.args[0]), type(call.args[1][0]), type(call.kwargs["sizes"][1])] == [int] * 3
    assert call.with_numbers() is call
