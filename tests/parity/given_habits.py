"""Forwards that give back what they were given, or views of it, in scripts that have no loader."""

import torch
import torch.nn as nn
from torch.optim import SGD


class Giving(nn.Module):
    """Returns something of its input beside what it computes."""

    def __init__(self, of, joins=False):
        super().__init__()
        self.layer, self.of, self.joins = nn.Linear(4, 4), of, joins

    def forward(self, x, *others):
        y = self.layer(x)
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
