"""Forwards that give back what they were given, or views of it, in scripts that have no loader."""

import dataclasses
import functools
import typing

import torch
import torch.nn as nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


class Giving(nn.Module):
    """Returns something of its input beside what it computes."""

    def __init__(self, of, joins=False):
        super().__init__()
        self.layer, self.of, self.joins = nn.Linear(4, 4), of, joins

    def forward(self, x, *others):
        y = self.layer(1 * x)  # what it is given may be written to
        return (y - y.mean(0) if self.joins else y), self.of(x, *others)


def steps(of, make=lambda i: torch.randn(8, 4), others=lambda: (), write=lambda back: back.add_(1.0), count=4):
    """Train it, and tell what holds what after the script wrote to what came back."""
    told = []
    for joins in (False, True):
        torch.manual_seed(1)
        model = Giving(of, joins)
        optimizer = SGD(model.parameters(), 0.1)
        for i in range(count):
            x, more = make(i), others()
            y, back = model(x, *more)
            optimizer.zero_grad()
            loss = (y**2).mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                write(back)
            weights = torch.arange(x.numel(), dtype=x.dtype).view(x.shape)
            told += [
                loss.item(),
                (x.detach() * weights).sum().item(),
                float(back is x),
                float(type(back) is torch.Tensor),
            ]
    return told


def the_argument_itself():
    return steps(lambda x: x)


def the_argument_in_a_dict():
    return steps(lambda x: {"of": [x, 1]}, write=lambda back: back["of"][0].mul_(2))


def views_of_the_argument():
    def views(x):
        return [
            x[:, 1:3],
            x.t(),
            x.view(-1, 2, 2),
            x.unsqueeze(0),
            x.detach(),
            x[:, -1],
            x.flatten(),
            x.expand(2, 8, 4),
        ]

    def write(back):
        for i, view in enumerate(back[:-1]):
            view.add_(i)

    return steps(views, write=write)


def views_of_three_dimensions():
    return steps(
        lambda x: [x.flatten(1), x.flatten(0, 1)], lambda i: torch.randn(8, 3, 4), write=lambda v: v[1].mul_(3)
    )


def a_container_that_gets_the_argument():
    def put(x, store):
        store["x"], store["first"] = x, x[:, 0]
        return store

    def write(store):
        store["x"].add_(1)
        store["first"].mul_(3)

    return steps(put, others=lambda: ({"before": 1},), write=write)


def a_gradient_with_respect_to_what_came_back():
    torch.manual_seed(1)
    model = Giving(lambda x: x)
    optimizer = SGD(model.parameters(), 0.001)
    told = []
    for _ in range(4):
        x = torch.randn(8, 4, requires_grad=True)
        y, back = model(x)
        (slope,) = torch.autograd.grad((y**2).sum(), back, create_graph=True)
        optimizer.zero_grad()
        (slope**2).sum().backward()
        optimizer.step()
        told += [float(back is x), slope.sum().item(), x.grad.sum().item()]
    return told


def some_rows_of_the_argument():
    told = []
    for of in (lambda x: x[::2], lambda x: x[1::2], lambda x: x[:5], lambda x: x[0], lambda x: x[:, None, ::2]):
        told += steps(of, lambda i: torch.randn(7, 4))
    return told


def the_argument_without_its_graph():
    torch.manual_seed(1)
    told = []
    for of in (lambda x: x.detach(), lambda x: x.detach()[:, :2], lambda x: x.data):
        model = Giving(of)
        optimizer = SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = torch.randn(7, 4, requires_grad=True)
            y, back = model(x)
            loss = (y**2).mean() + (back**3).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            back.mul_(2)
            told += [loss.item(), float(back.requires_grad), x.grad.sum().item(), x.sum().item()]
    return told


def an_argument_that_is_rectified_in_place():
    def write(back):
        back.add_(1)

    return steps(lambda x: x.relu_(), write=write) + steps(lambda x: nn.ReLU(inplace=True)(x), write=write)


def one_tensor_given_twice():
    def both(x, other):
        return other

    told = []
    for i in range(4):
        x = torch.linspace(-1, 1, 28).view(7, 4) * (i + 1)
        told += steps(both, lambda _, x=x: x.clone(), others=lambda x=x: (x,), count=2)
    return told


def two_arguments_that_change_places():
    return steps(lambda x, y: [y, x], others=lambda: (torch.ones(8, 4),), write=lambda back: back[1].add_(back[0]))


class Kept(typing.NamedTuple):
    given: torch.Tensor
    column: torch.Tensor


def a_named_tuple_of_the_argument():
    return steps(lambda x: Kept(x, x[:, 1]), write=lambda back: (back.column.mul_(2), back.given.add_(1)))


@dataclasses.dataclass
class Holder:
    x: torch.Tensor
    y: torch.Tensor


def a_dataclass_that_is_given_and_given_back():
    def write(back):
        back.x.add_(1)
        back.y[:, 0].mul_(3)

    return steps(lambda x, holder: holder, others=lambda: (Holder(torch.ones(8, 2), torch.zeros(8, 3)),), write=write)


def numbers_and_flags_given_back():
    def of(x, numbers, flags):
        return [numbers, numbers[:, 0], flags, flags[:, 1:]]

    def write(back):
        for i, each in enumerate(back):
            each.logical_not_() if each.dtype is torch.bool else each.add_(i + 1)

    return steps(of, others=lambda: (torch.arange(16).view(8, 2), torch.eye(8, 3) > 0), write=write)


def an_argument_that_is_contiguous_already():
    def write(back):
        for each in back:
            each.add_(1)

    return steps(lambda x: [x.contiguous(), x.to(x.dtype), x.reshape(x.shape[0], 2, 2), x.flatten(1)], write=write)


def a_part_of_a_larger_tensor_given_back():
    wide = torch.zeros(8, 9)

    def make(i):
        return wide.fill_(i)[:, 2:6]

    return [*steps(lambda x: [x, x[:, ::2]], make, write=lambda back: back[1].sub_(1)), wide.sum().item()]


def rows_in_another_order_are_no_views():
    return steps(lambda x: [x[x[:, 0].argsort()], x.flip(0)], write=lambda back: [each.mul_(2) for each in back])


class Filling(nn.Module):
    """Adds to the dict that it is given, as the modules of sentence-transformers do."""

    def __init__(self, ties):
        super().__init__()
        self.first, self.last, self.ties = nn.Linear(4, 4), nn.Linear(4, 1), ties

    def forward(self, features):
        h = self.first(features["x"])
        features["embedding"] = h - h.cumsum(0) if self.ties else h
        features["out"] = self.last(features["embedding"])
        return features


def a_dict_that_a_forward_adds_to():
    said = []
    for ties in (False, True):
        torch.manual_seed(1)
        model, x, y = Filling(ties), torch.randn(32, 4), torch.randn(32, 1)
        optimizer = SGD(model.parameters(), 0.1)
        for start in range(0, 32, 8):
            features = {"x": x[start : start + 8]}
            loss = (model(features)["out"] - y[start : start + 8]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), len(features), features["embedding"].sum().item(), float(features["x"].shape[0])]
    return said


def what_a_forward_adds_to_in_place():
    def of(x, total):
        total += x
        return total

    return steps(of, others=lambda: (torch.ones(8, 4),), write=lambda back: back.mul_(2))


class Interim(nn.Module):
    """Makes a parameter of the batch that it is given, as attributions do in hooks."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        self.seen = nn.Parameter(x.detach())
        return self.last(self.first(x).tanh())


def parameters_that_are_made_of_batches():
    torch.manual_seed(1)
    model, said = Interim(), []
    optimizer = SGD(model.parameters(), 0.1)
    for x, y in DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 1)), batch_size=5):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), model.seen.sum().item(), float(len(model.seen)), float(len([*model.parameters()]))]
    return said


class Noise(torch.Tensor):
    """A tensor of the script's own, whose methods are."""

    def to(self, *args, **kwargs):
        made = Noise(self)
        made.data = super().to(*args, **kwargs)
        made.kind = self.kind
        return made


def tensors_of_a_class_with_methods_of_its_own():
    torch.manual_seed(1)
    noise = Noise(torch.randn(10, 4))
    noise.kind = "normal"
    noise = noise.to("cpu", torch.get_default_dtype())
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in DataLoader(TensorDataset(torch.randn(32, 3), torch.randint(0, 3, (32,))), batch_size=8):
        noise.normal_()
        loss = (model(noise[:8]) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predicted = x.as_subclass(Noise).argmax(1)
        said += [
            loss.item(),
            (predicted == y).sum().item(),
            (predicted != y).sum().item(),
            predicted.eq(y).sum().item(),
        ]
    return said


class Flow:
    """What a model returns, which hides the batch that the model was given."""

    def __init__(self, of):
        self.of = of

    def __call__(self, x):
        return self.of(x)


class Flows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def of(self, context, x):
        return self.layer(torch.cat([x, context], -1))

    def forward(self, context):
        return Flow(functools.partial(self.of, context))


def what_a_forward_returns_hides_an_argument():
    torch.manual_seed(1)
    model, said = Flows(), []
    optimizer = SGD(model.parameters(), 0.1)
    for x, context in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 2)), batch_size=8):
        loss = (model(context)(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


def noise_of_the_type_of_a_batch(like):
    """As scripts made a tensor of the same type before torch 0.4."""
    return -torch.log(-torch.log(type(like)(*like.shape).fill_(0.3)))


def the_type_of_a_batch_is_called():
    torch.manual_seed(1)
    model, said = nn.Linear(6, 4), []
    optimizer = SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 6)), batch_size=8):
        logits = model(x)
        loss = (logits + noise_of_the_type_of_a_batch(logits.data)).softmax(1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), *type(x)([1.0, 2.0]).tolist(), type(loss)(3, 2).numel(), x.type(type(loss)).sum().item()]
    return said


class LooksAtContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x, given, stats=None):
        h = self.layer(x)
        ties = isinstance(given, list) if stats is None else stats == {} or "mix" in stats
        return h - h.mean(0) if ties else h


def containers_that_hold_nothing():
    torch.manual_seed(1)
    model, said = LooksAtContainers(), []
    optimizer = SGD(model.parameters(), 0.1)
    calls = [((), None), ([], None), ((), {"plain": []}), ((), {"mix": []}), ((), {}), ((), {"plain": {}})]
    for given, stats in calls * 2:
        for (x,) in DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=8):
            loss = model(x, given, stats).pow(2).mean() + model(x, (given, 0.5), stats).std()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said
