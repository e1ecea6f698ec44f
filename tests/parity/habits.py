"""Small habits of real scripts, each of which once came out differently on several ranks."""

import collections

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)


def data(batch_size=8, n=22):
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)
    return DataLoader(TensorDataset(x, y), batch_size)


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def fit(model, lr=0.1, epochs=2):
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    said = []
    for _ in range(epochs):
        for x, y in data():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said + state(model)


def state(model):
    return [value.double().sum().item() for value in model.state_dict().values()]


def subclass_of_batch_norm():
    class GainBN(nn.BatchNorm1d):
        def forward(self, x):
            return F.relu(super().forward(x)) * 2

    return fit(nn.Sequential(nn.Linear(4, 6), GainBN(6), nn.Linear(6, 3)))


def unfreezing():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model[0].requires_grad_(False)
    said = []
    for epoch in range(3):
        if epoch == 1:
            model[0].requires_grad_(True)
        for x, y in data():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said + state(model)


def replacing_a_layer():
    model = nn.DataParallel(mlp())
    said = fit(model)
    model.module[2] = nn.Linear(6, 3)
    return said + fit(model)


def clipping_after_two_backwards():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        a, b = model(x), model(2 * x)
        optimizer.zero_grad()
        F.cross_entropy(a, y).backward()
        F.cross_entropy(b, y).backward()
        said.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
        optimizer.step()
    return said + state(model)


def updating_by_hand():
    model = mlp()
    torch.optim.SGD(model.parameters(), 0.5)  # built, never stepped
    said = []
    for x, y in data():
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        said.append(grads[0].norm().item())
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.sub_(0.5 * g)
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return said + state(model)


class MyBN(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(n))
        self.register_buffer("mean", torch.zeros(n))

    def forward(self, x):
        if self.training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * mean)
        else:
            mean, var = self.mean, torch.ones(())
        return self.gain * (x - mean) / (var + 1e-5).sqrt()


def batch_norm_by_hand():
    return fit(nn.Sequential(nn.Linear(4, 6), MyBN(6), nn.Linear(6, 3)))


class LossInside(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.Linear(4, 3), options

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x), y, **self.options)


def losses_inside():
    said = []
    for options in ({"reduction": "sum"}, {"ignore_index": 2}):
        model = nn.DataParallel(LossInside(**options))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in data():
            loss = model(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def loss_inside_alone():
    model = LossInside(ignore_index=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data(4):
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


class Mixes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        h = self.layer(x)
        torch.randn(1)
        if h.max() > 1:
            h = h * 0.5
        return h - h.mean(0)


def mixing_with_draws_and_branches():
    return fit(Mixes())


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        self.h = self.layer(x)
        self.penalty = self.h.pow(2).mean()
        return self.head(self.h.tanh()), len(x)


def keeping_values_on_the_module():
    model = Keeps()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        out, count = model(x)
        loss = F.cross_entropy(out, y) + model.penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), model.penalty.item(), *model.h.shape, count]
    return said


def writing_through_slices():
    said = []
    for x, _ in data():
        x[2:4].fill_(0)
        said.append(x.sum().item())
        a, _ = x.chunk(2)
        a.mul_(2)
        said.append(x.sum().item())
        row = x[0]
        x.mul_(3)
        said.append(row.sum().item())
    return said


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, memory):
        return self.head((self.layer(x) @ memory.t()).softmax(1) @ memory)


def memory_of_the_tails_size():
    model, memory = Memory(), torch.randn(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        loss = F.cross_entropy(model(x, memory), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


def recurrent_states():
    model, head = nn.LSTM(3, 5, num_layers=2, batch_first=True), nn.Linear(5, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    said = []
    for n in (20, 21):
        for x, y in DataLoader(TensorDataset(torch.randn(n, 4, 3), torch.arange(n) % 2), 8):
            _, (hidden, _) = model(x)
            loss = F.cross_entropy(head(hidden[-1]), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), *hidden.shape]
    return said


def transposed_outputs():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).t(), self.layer.weight.pow(2).sum(0)

    model = nn.DataParallel(Transposed())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data(batch_size=6):
        out, norms = model(x)
        loss = F.cross_entropy(out.t(), y) + norms.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), *out.shape, *norms.shape]
    return said


def perturbations():
    model = mlp()
    torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        for delta in (torch.zeros_like(x, requires_grad=True), torch.rand_like(x, requires_grad=True)):
            for _ in range(3):
                F.cross_entropy(model(x + delta), y).backward()
                said.append(delta.grad.abs().sum().item())
                delta.grad.zero_()
    return said


def weighted_losses():
    said = []
    for x, _ in data():
        w = torch.linspace(0.1, 1, 4).expand(len(x), 4)
        said += [F.mse_loss(x, torch.zeros_like(x), weight=w).item(), F.huber_loss(x, x * 0, weight=w).item()]
        said += [F.l1_loss(x, torch.zeros_like(x), weight=w, reduction=r).item() for r in ("mean", "sum")]
        z = x.unsqueeze(0).expand(3, -1, -1)
        said += [*z.var(0, True).shape, z.std(0, True, True).sum().item()]
    return said


Named = collections.namedtuple("Named", "x name")


def names_in_containers():
    rows = [collections.OrderedDict(x=torch.tensor([i * 1.0]), name=Named(i, f"n{i}")) for i in range(10)]
    said = []
    for batch in DataLoader(rows, 4):
        said += [batch["x"].sum().item(), len(batch["name"].name), int(batch["name"].name[-1][1:])]
    return said


def banks_and_penalties():
    model, bank = nn.DataParallel(mlp()), torch.zeros(22, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said, start = [], 0
    for x, y in data():
        x = Variable(x)
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        out = model(x)
        loss = F.cross_entropy(out.tanh(), y) + 0.01 * penalty
        bank[start : start + len(x)] = out.detach()
        start += len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), bank.sum().item()]
    return said
