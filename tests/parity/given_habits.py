"""Forwards that give back what they were given, or views of it, in scripts that have no loader."""

import dataclasses
import typing

import torch
import torch.nn as nn
from torch.optim import SGD


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
