"""Forwards that leave what they computed in attributes of their layers: attention weights, features, states, losses."""

import collections
import contextlib
import copy
import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def texts(batch_size=8, n=25):
    drawn = torch.Generator().manual_seed(3)
    x, y = torch.randn(n, 5, 4, generator=drawn), torch.randint(0, 3, (n,), generator=drawn)
    return DataLoader(TensorDataset(x, y), batch_size)


class Attention(nn.Module):
    """Of a kind that is copied from model to model, with its weights kept to be looked at."""

    def __init__(self, keep):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.attn, self.keep = None, keep

    def forward(self, x):
        q, k, v = (layer(x).view(x.size(0), -1, 2, 2).transpose(1, 2) for layer in self.layers[:3])
        p = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(2), -1)
        self.keep(self, p)
        return self.layers[3]((p @ v).transpose(1, 2).contiguous().view(x.size(0), -1, 4))


class Net(nn.Module):
    def __init__(self, keep, how=None):
        super().__init__()
        self.one, self.two, self.out = Attention(keep), Attention(keep), nn.Linear(4, 3)
        self.how = how or plain

    def forward(self, x):
        return self.how(self, x)


def plain(self, x):
    h = x + self.one(x)
    return self.out((h + self.two(h)).mean(1))


def in_attn(layer, p):
    layer.attn = p


def trained(keep, how=None, loss=None, each=None, epochs=3, wrap=None):
    """Train it, and tell what its attributes hold after each step.

    Args:
        keep: what an attention does with its weights.
        how: the forward around.
        loss: of the model, its outputs and targets.
        each: what is told after each step; the weights of both layers by default.
        epochs: of four batches, the last of which is a single row.
        wrap: the model.
    """
    torch.manual_seed(0)
    model = Net(keep, how)
    optimizer = SGD(model.parameters(), 0.1)
    called = model if wrap is None else wrap(model)
    said = []
    for _ in range(epochs):
        for x, y in texts():
            out = called(x)
            said.append(descend(F.cross_entropy(out, y) if loss is None else loss(model, out, y), optimizer).item())
            said += (each or weights)(model, out)
    return said + everything(model)


def weights(model, out):
    return [number for layer in (model.one, model.two) for number in numbers(layer.attn)]


def numbers(kept):
    return [float(len(kept)), kept.sum(-1).mean().item(), *kept.pow(2).sum((1, 2, 3)).tolist()]


def an_output_that_is_written_to():
    return written_to(on_batches=False)


def weights_to_look_at():
    return trained(in_attn)


def weights_in_evaluation_alone():
    def keep(layer, p):
        if not layer.training:
            layer.attn = p

    def each(model, out):
        model.eval()
        with torch.no_grad():
            for x, _ in texts(6):
                model(x)
        model.train()
        return weights(model, out)

    return trained(keep, each=each, epochs=2)


def weights_that_are_penalised():
    def loss(model, out, y):
        entropy = sum(
            (layer.attn * layer.attn.clamp_min(1e-9).log()).sum(-1).mean() for layer in (model.one, model.two)
        )
        return F.cross_entropy(out, y) - 0.1 * entropy

    return trained(in_attn, loss=loss)


def weights_that_alone_are_trained():
    return trained(in_attn, loss=lambda model, out, y: model.two.attn[:, 0].pow(2).mean())


def set_to_none_first():
    def keep(layer, p):
        layer.attn = None
        layer.attn = p

    return trained(keep)


def set_to_none_by_the_script():
    def each(model, out):
        told = weights(model, out)
        model.one.attn = model.two.attn = None
        return told

    return trained(in_attn, each=each)


def deleted_by_the_script():
    def each(model, out):
        told = weights(model, out)
        del model.one.attn, model.two.attn
        return told

    return trained(in_attn, each=each)


def asked_whether_it_is_there():
    def keep(layer, p):
        if layer.attn is None:
            layer.first = p.detach()
        layer.attn = p

    return trained(keep, each=lambda model, out: weights(model, out) + numbers(model.one.first))


def asked_whether_it_is_a_tensor():
    def keep(layer, p):
        if isinstance(layer.attn, torch.Tensor):
            layer.shift = layer.attn.detach().mean(0)
        layer.attn = p

    def each(model, out):
        return weights(model, out) + model.two.__dict__.get("shift", torch.zeros(1)).flatten().tolist()

    return trained(keep, each=each)


def lists_of_weights():
    def how(self, x):
        self.maps = []
        h = x + self.one(x)
        self.maps.append(self.one.attn)
        h = h + self.two(h)
        self.maps.append(self.two.attn)
        return self.out(h.mean(1))

    return trained(in_attn, how, each=lambda model, out: [number for kept in model.maps for number in numbers(kept)])


def dicts_of_weights():
    def keep(layer, p):
        layer.seen = {"attn": p, "head": (p[:, 0], 2)}

    def each(model, out):
        seen = model.one.seen
        return [*numbers(seen["attn"]), seen["head"][0].sum().item(), seen["head"][1]]

    return trained(keep, each=each)


def a_list_that_grows():
    def keep(layer, p):
        layer.__dict__.setdefault("seen", []).append(p)

    def each(model, out):
        told = [float(len(model.one.seen)), *numbers(model.one.seen[-1])]
        if len(model.one.seen) > 2:
            model.one.seen.clear()
        return told

    return trained(keep, each=each)


class Recurrent(nn.Module):
    """Goes on from where its last batch ended."""

    def __init__(self, going_on):
        super().__init__()
        self.cell, self.out, self.h = nn.GRUCell(4, 6), nn.Linear(6, 3), None
        self.going_on = going_on

    def forward(self, x):
        h = self.going_on(self, x)
        for time in range(x.size(1)):
            h = self.cell(x[:, time], h)
        self.h = h
        return self.out(h)


def recurrent(going_on, starts_anew):
    torch.manual_seed(0)
    model = Recurrent(going_on)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(3):
        if starts_anew:
            model.h = None
        for x, y in texts(8, 24):
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
            said += model.h.sum(1).tolist()
    return said + everything(model)


def states_from_batch_to_batch():
    def going_on(self, x):
        return torch.zeros(x.size(0), 6) if self.h is None else self.h.detach()

    return recurrent(going_on, True) + recurrent(going_on, False)


def states_if_there_is_a_tensor():
    def going_on(self, x):
        return self.h.detach() if torch.is_tensor(self.h) else x.new_zeros(x.size(0), 6)

    return recurrent(going_on, True) + recurrent(going_on, False)


def states_of_which_only_the_size_is_asked():
    def going_on(self, x):
        return x.new_zeros(x.size(0), 6) if self.h is None or len(self.h) != len(x) else x.new_ones(x.size(0), 6)

    return recurrent(going_on, True) + recurrent(going_on, False)


def states_whose_kind_is_asked():
    def going_on(self, x):
        kept = self.__dict__.get("pair")
        before = kept[0].detach() if isinstance(kept, tuple) else x.new_zeros(x.size(0), 6)
        self.pair = (before + x[:, :, :1].sum(1), len(x))
        return before + getattr(self.h, "counted", 0)

    return recurrent(going_on, True) + recurrent(going_on, False)


def states_that_may_not_fit():
    def how(self, x):
        z = plain(self, x)
        with contextlib.suppress(AttributeError, RuntimeError):
            z = z + 0.5 * self.z.detach().view(z.shape)
        self.z = z
        return z

    return trained(in_attn, how)


def a_queue_of_keys():
    def how(self, x):
        z = self.one(x).mean(1)
        queue = self.__dict__.get("queue", torch.zeros(3, 4))
        self.queue = torch.cat([queue, z.detach()])[-12:]
        return self.out(z) + (z @ self.queue.T).mean(1, keepdim=True)

    return trained(in_attn, how, each=lambda model, out: model.queue.sum(1).tolist())


def gradients_of_features():
    def how(self, x):
        self.features = self.one(x)
        if self.training and self.features.requires_grad:
            self.features.retain_grad()
        return self.out(self.features.mean(1))

    return trained(in_attn, how, each=lambda model, out: model.features.grad.sum((1, 2)).tolist())


def gradients_asked_for_by_the_script():
    def how(self, x):
        self.features = self.one(x)
        return self.out(self.features.tanh().mean(1))

    def loss(model, out, y):
        model.features.retain_grad()
        return F.cross_entropy(out, y)

    return trained(in_attn, how, loss, each=lambda model, out: model.features.grad.sum((1, 2)).tolist())


def gradients_by_autograd_grad():
    def how(self, x):
        self.features = self.one(x)
        return self.out(self.features.tanh().mean(1))

    def loss(model, out, y):
        first = F.cross_entropy(out, y)
        (grad,) = torch.autograd.grad(first, model.features, create_graph=True)
        return first + grad.pow(2).sum()

    return trained(in_attn, how, loss, each=lambda model, out: model.features.sum((1, 2)).tolist())


def inputs_that_are_kept():
    def how(self, x):
        self.x = x
        return plain(self, x)

    def each(model, out):
        model.x.add_(1)
        return model.x.sum((1, 2)).tolist()

    return trained(in_attn, how, each=each)


def outputs_that_are_kept():
    def how(self, x):
        self.logits = plain(self, x)
        self.rows = self.logits[:, 0]
        return self.logits

    def each(model, out):
        with torch.no_grad():
            out.mul_(2)
        return [*model.logits.sum(1).tolist(), *model.rows.tolist()]

    return trained(in_attn, how, each=each)


def computed_again_in_backward():
    def how(self, x):
        h = x + checkpoint(self.one, x, use_reentrant=False)
        return self.out((h + checkpoint(self.two, h, use_reentrant=True)).mean(1))

    return trained(in_attn, how)


def a_loss_of_means_and_variances():
    def how(self, x):
        self.mu, self.logvar = self.one(x).mean(1), self.two(x).mean(1)
        self.kl = -0.5 * (1 + self.logvar - self.mu.pow(2) - self.logvar.exp()).sum(1).mean()
        return self.out(self.mu + self.logvar.mul(0.5).exp())

    def loss(model, out, y):
        return F.cross_entropy(out, y) + 0.1 * model.kl + 0.1 * model.mu.pow(2).mean()

    return trained(in_attn, how, loss, each=lambda model, out: [model.kl.item(), *model.mu.sum(1).tolist()])


def losses_of_layers():
    def keep(layer, p):
        layer.attn = p
        layer.aux = p.mean((0, 1, 2)).pow(2).sum()

    def loss(model, out, y):
        return F.cross_entropy(out, y) + sum(layer.aux for layer in model.modules() if hasattr(layer, "aux"))

    return trained(keep, loss=loss)


def two_calls_in_a_step():
    torch.manual_seed(0)
    model = Net(in_attn)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, _ in texts():
            model(x)
            left = model.one.attn
            model(x.flip(1))
            said.append(descend((left - model.one.attn).pow(2).mean(), optimizer).item())
            said += numbers(left)
    return said + everything(model)


def only_if_asked_for():
    def keep(layer, p):
        layer.attn = p if layer.wanted else None

    def each(model, out):
        told = [float(layer.attn is None) for layer in (model.one, model.two)]
        model.two.wanted = not model.two.wanted
        return told + numbers(model.one.attn)

    Attention.wanted = True
    try:
        return trained(keep, each=each, epochs=4)
    finally:
        del Attention.wanted


def copies_and_what_they_hold():
    def each(model, out):
        with torch.no_grad():
            model(next(iter(texts()))[0])
        twin = copy.deepcopy(model)
        return weights(model, out) + weights(twin, out) + [float(len(model.state_dict()))]

    return trained(in_attn, each=each)


def compiled_models():
    return trained(in_attn, wrap=lambda model: torch.compile(model, backend="aot_eager"))


def models_in_data_parallel():
    return trained(in_attn, each=lambda model, out: [1.0], wrap=nn.DataParallel)


def written_with_their_weights():
    def each(model, out):
        return json.loads(json.dumps(model.two.attn[:2].tolist()))[0][0][0]

    return trained(in_attn, each=each)


def evaluated_with_batches_of_all_sizes():
    def each(model, out):
        told = []
        with torch.no_grad():
            for size in (1, 2, 3, 7):
                model(next(iter(texts(size)))[0])
                told += weights(model, out)
        return told

    return trained(in_attn, each=each, epochs=2)


def a_part_that_is_called_by_itself():
    def each(model, out):
        model.one(next(iter(texts(6)))[0])
        return weights(model, out)

    return trained(in_attn, each=each)


def gradients_of_inputs_that_come_out():
    def how(self, x):
        self.x = x
        return plain(self, x), x

    torch.manual_seed(0)
    model, said = Net(in_attn, how), []
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(3):
        for x, y in texts():
            out, same = model(x.requires_grad_())
            (grad,) = torch.autograd.grad(out.sum(), same, create_graph=True)
            said.append(descend(F.cross_entropy(out, y) + grad.square().sum(), optimizer).item())
            said += [*grad.abs().sum((1, 2)).tolist(), x.grad.abs().sum().item()]
    return said + everything(model)


def gradients_of_inputs_that_go_through():
    torch.manual_seed(0)
    model, said = nn.ModuleDict({"net": Net(lambda layer, p: None, lambda self, x: (plain(self, x), x))}), []
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(3):
        for x, y in texts():
            out, same = model["net"](x.requires_grad_())
            (grad,) = torch.autograd.grad(out.square().sum(), same, create_graph=True)
            said.append(descend(F.cross_entropy(out, y) + grad.square().sum(), optimizer).item())
            said += [float(same is x), *grad.abs().sum((1, 2)).tolist()]
    return said + everything(model)


def states_of_one_row_set_by_the_script():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
            self.state = torch.zeros(1, 6)

        def forward(self, x):
            self.state = torch.tanh(self.cell(x.mean(1)) + 0.5 * self.state)
            return self.out(self.state)

    torch.manual_seed(0)
    model, said = Running(), []
    optimizer = SGD(model.parameters(), 0.1)
    for epoch in range(4):
        for number, (x, y) in enumerate(texts()):
            if number % 2 == 0 or len(x) == 1:
                model.state = torch.full((1, 6), 0.1 * epoch)
            else:
                model.state = model.state.detach()
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
            said += model.state.sum(1).tolist()
    return said + everything(model)


def another_module_that_looks_at_them():
    class Penalty(nn.Module):
        def __init__(self, of):
            super().__init__()
            self.weight, self.of = nn.Parameter(torch.ones(())), [of]

        def forward(self, x):
            kept = self.of[0].attn
            return x.sum((1, 2)) if kept is None else self.weight * kept.square().sum((1, 2, 3)) + x.sum((1, 2))

    torch.manual_seed(0)
    model = Net(in_attn)
    penalty, said = Penalty(model.one), []
    optimizer = SGD([*model.parameters(), *penalty.parameters()], 0.01)
    for epoch in range(3):
        for x, y in texts(8, 24):
            if epoch == 1:
                model.one.attn = None
            before = penalty(x).sum()
            loss = F.cross_entropy(model(x), y) + 0.1 * penalty(x).mean() + 0.01 * before
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.one.attn = model.one.attn.detach()
            said += [loss.item(), before.item(), *weights(model, None)]
    return said + everything(model, penalty)


def a_forward_that_fails_after_it():
    class Fails(Exception):
        pass

    def how(self, x):
        out = plain(self, x)
        if self.fails:
            raise Fails
        return out

    def each(model, out):
        model.fails = True
        with contextlib.suppress(Fails):
            model(next(iter(texts(6)))[0])
        model.fails = False
        with torch.no_grad():
            return numbers(model.two.attn)

    Net.fails = False
    try:
        return trained(in_attn, how, each=each)
    finally:
        del Net.fails


def below_what_compares_rows():
    def how(self, x):
        z = self.one(x) + self.two(x)
        near = torch.cdist(z.mean(1), z.mean(1)).softmax(1)
        return self.out(near @ z.mean(1))

    return trained(in_attn, how, each=weights)


class Store:
    """Of somebody who looks at it later."""


def in_an_object_that_is_no_layer():
    store = Store()

    def keep(layer, p):
        store.attn = p

    return trained(keep, each=lambda model, out: numbers(store.attn))


def by_a_class_that_sets_attributes_its_own_way():
    class Own(Net):
        def __setattr__(self, name, value):
            if name == "seen":
                self.__dict__["_seen"] = [value, len(self.__dict__.get("_seen", []))]
            else:
                super().__setattr__(name, value)

    def how(self, x):
        self.seen = self.one(x)
        return self.out((x + self._seen[0]).mean(1))

    torch.manual_seed(0)
    model, said = Own(in_attn, how), []
    optimizer = SGD(model.parameters(), 0.1)
    for _ in range(3):
        for x, y in texts():
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
            said += [*model._seen[0].sum((1, 2)).tolist(), model._seen[1], *numbers(model.one.attn)]
    return said + everything(model)


def in_inference_mode_and_while_gradients_are_summed_up():
    torch.manual_seed(0)
    model, said = Net(in_attn), []
    optimizer = SGD(model.parameters(), 0.1)
    for epoch in range(3):
        for number, (x, y) in enumerate(texts()):
            loss = F.cross_entropy(model(x), y) + model.one.attn.square().mean()
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            with torch.inference_mode():
                said += [loss.item(), model(x[: 3 + epoch]).sum().item(), *weights(model, None)]
    return said + everything(model)


# --- what the last call left is looked at -----------------------------------------------------------------------------


class Looking(nn.Module):
    """One layer; ``look(self, x, z)`` gives what comes out, and leaves something in ``kept``."""

    def __init__(self, look):
        super().__init__()
        self.layer, self.look, self.kept, self.queue = nn.Linear(4, 3), look, None, collections.deque(maxlen=2)

    def forward(self, x):
        return self.look(self, x, self.layer(x))


def looked_at(look, change=lambda model, step: None, lengths=(5,), told=lambda kept: []):
    torch.manual_seed(0)
    model, said = Looking(look), []
    optimizer = SGD(model.parameters(), 0.1)
    batches = [x for _ in range(2) for x, _ in texts(8, 32)]
    for step, x in enumerate(batches):
        for _ in range(1 + (step > 4)):
            said.append(descend(model(x[:, : lengths[step % len(lengths)]]).square().mean(), optimizer).item())
        change(model, step)
        said += told(model)
    return said + everything(model)


def length_for_some_lengths():
    def look(self, x, z):
        z = z.mean(1)
        if x.size(1) > 4 and self.kept is not None and len(self.kept) == len(x):
            z = z * 2
        self.kept = z.detach()
        return z

    return looked_at(look, lengths=(4, 4, 4, 5, 4, 5, 5, 5))


def number_of_rows_beside_it_for_some_lengths():
    def look(self, x, z):
        if x.size(1) < 5:
            self.kept = z.detach(), x.size(0)
        return z

    return looked_at(look, lengths=(5, 5, 5, 4, 5, 4), told=lambda model: [0 if model.kept is None else model.kept[1]])


def lists_inside_it():
    def look(self, x, z):
        if self.kept is not None and len(self.kept[0]) == 2:
            z = z - z.mean(0)
        self.kept = ([z.detach()],)
        return z

    return looked_at(look, lambda model, step: model.kept[0].append(0.5) if step == 4 else None)


def its_attributes():
    def look(self, x, z):
        if hasattr(self.kept, "flag"):
            z = z - z.mean(0)
        self.kept = z.detach()
        return z

    return looked_at(look, lambda model, step: setattr(model.kept, "flag", True) if step == 4 else None)


def whether_it_is_the_input():
    def look(self, x, z):
        if self.kept is x:
            z = z * 2
        self.kept = x
        return z

    torch.manual_seed(0)
    model, said = Looking(look), []
    optimizer = SGD(model.parameters(), 0.1)
    for step, (x, _) in enumerate(texts(8, 32)):
        for _ in range(1 + (step > 1)):
            said.append(descend(model(x).square().mean(), optimizer).item())
    return said + everything(model)


def through_a_function_of_its_own():
    def look(self, x, z):
        if "get" not in vars(self):
            self.get = lambda: self.kept
        self.kept = z
        return self.kept / self.get().size(0)

    return looked_at(look, lambda model, step: setattr(model, "kept", None))


def beside_a_queue():
    def look(self, x, z):
        self.kept = kept = z.mean(1).detach()
        self.queue.append(kept)
        return z

    return looked_at(look, told=lambda model: [len(kept) + kept.sum().item() for kept in model.queue])


def within_a_checkpoint_and_set_to_none():
    def how(self, x):
        h = x + checkpoint(self.one, x, use_reentrant=False)
        self.one.attn = None
        return self.out((h + self.two(h)).mean(1))

    return trained(in_attn, how, each=lambda model, out: numbers(model.one.attn) + numbers(model.two.attn))


def within_a_checkpoint_and_without():
    def how(self, x):
        h = x + checkpoint(self.one, x, use_reentrant=False)
        return self.out((h + self.one(h) + self.two(h)).mean(1))

    return trained(in_attn, how)


class ByAnotherName(Looking):
    def compute(self, x):
        z = self.layer(x)
        if x.size(1) > 4 and self.kept is not None and len(self.kept) == len(x):
            z = z * 2
        self.kept = z.detach()
        return z

    forward = compute


def in_a_forward_by_another_name():
    torch.manual_seed(0)
    model, said = ByAnotherName(None), []
    optimizer = SGD(model.parameters(), 0.1)
    for step, (x, _) in enumerate([*texts(8, 32), *texts(8, 32)]):
        said.append(descend(model(x[:, : (4, 4, 4, 5, 4, 5, 5, 5)[step]]).square().mean(), optimizer).item())
    return said + everything(model)


class Written(nn.Module):
    def __init__(self, on_batches):
        super().__init__()
        self.one, self.two, self.on_batches = nn.Linear(4, 8), nn.Linear(8, 3), on_batches

    def forward(self, x):
        self.kept = h = self.one(x)
        h.retain_grad()
        if self.on_batches:
            h = h - h.detach().flip(0).cumsum(0)[-1]
        return self.two(torch.tanh(h)), self.kept


def written_to(on_batches):
    """What is written to an output, an attribute has too, and its gradient."""
    torch.manual_seed(0)
    model, said = Written(on_batches), []
    optimizer = SGD(model.parameters(), 0.1)
    for x, _ in texts():
        out, kept = model(x.mean(1))
        said += [float(model.kept is kept), len(kept)]
        total = kept.mean()
        kept.mul_(2)
        out.add_(1)
        loss = out.square().mean() + model.kept.exp().mean() + total
        said += [descend(loss, optimizer).item(), model.kept.grad.norm().item()]
    return said + everything(model)


def an_output_on_batches_that_is_written_to():
    return written_to(on_batches=True)
