"""Loops that reach gradients by every path that scripts take; each compares weights, buffers and optimizer state."""

import abc
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.habits import data, mlp
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint


def everything(*things):
    """Sums and sums of squares of all state that a loop leaves behind."""
    said = []
    for thing in things:
        held = thing.state_dict()
        if isinstance(thing, nn.Module):
            said += [v for p in thing.parameters() for v in ([-1.0] if p.grad is None else both(p.grad))]
            said += [v for value in held.values() for v in both(value)]
        else:
            for _, entry in sorted(held["state"].items()):
                for _, value in sorted(entry.items()):
                    if isinstance(value, torch.Tensor):
                        said += both(value)
    return said


def both(tensor):
    tensor = tensor.detach().to_dense().double() if tensor.layout is not torch.strided else tensor.detach().double()
    return [tensor.sum().item(), (tensor**2).sum().item()]


def loop(model, step, *optimizers, epochs=2, batch_size=8):
    said = []
    for _ in range(epochs):
        for x, y in data(batch_size):
            said.append(float(step(x, y)))
    return said + everything(model, *optimizers)


def descend(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.spare = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.features(x))

    def encode(self, x):
        return torch.tanh(self.features(x))


def several_forwards_before_one_backward():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        a, b, c = model(x), model(x.flip(1)), model(x * 0.5)
        loss = F.cross_entropy(a, y) + (a - b).pow(2).mean() + F.triplet_margin_loss(a, b, c)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def several_backwards_on_a_retained_graph():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        out = model(x)
        first, second = F.cross_entropy(out, y), out.pow(2).mean()
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return first

    return loop(model, step, optimizer)


def backward_on_a_list():
    model = nn.DataParallel(mlp())
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out = model(x)
        losses = [F.cross_entropy(out, y), out.abs().mean(), out.pow(2).sum(1)]
        optimizer.zero_grad()
        torch.autograd.backward(losses, [None, None, torch.full((len(x),), 0.1)])
        optimizer.step()
        return losses[0]

    return loop(model, step, optimizer)


def backward_from_a_vector():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        losses = F.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        losses.backward(gradient=torch.linspace(0, 1, len(x)))
        optimizer.step()
        return losses.mean()

    return loop(model, step, optimizer)


def methods_and_parts_called_from_outside():
    model = Net()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        z = model.encode(x)
        loss = loss + F.cross_entropy(model.head(model.features(x)), y) + z.pow(2).mean()
        loss = loss + F.cross_entropy(F.linear(z, model.head.weight), y) + model.forward(x).abs().mean()
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def parts_of_a_data_parallel_module():
    model = nn.DataParallel(Net())
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model.module.head(model.module.encode(x)), y)
        if len(x) % 4:
            loss = loss + F.cross_entropy(model(x), y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def weight_penalties():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        (1e-2 * sum(p.abs().sum() for p in model.parameters())).backward()
        loss = F.cross_entropy(model(x), y) + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())
        loss.backward()
        (1e-2 * model[0].weight.norm()).backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def penalty_between_forward_and_backward():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        (1e-1 * model[2].weight.pow(2).sum()).backward()
        model(x).sum()  # a forward that nobody goes back from
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def unused_parameters():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.05, weight_decay=0.1)
    seen = []

    def step(x, y):
        optimizer.zero_grad()
        z = model.features(x) if len(seen) % 3 == 2 else None
        loss = F.cross_entropy(model(x), y)
        if z is not None:
            loss = loss + F.cross_entropy(model.spare(z), y)
        loss.backward()
        seen.append([p.grad is None for p in model.parameters()])
        optimizer.step()
        return loss + sum(map(sum, seen))

    return loop(model, step, optimizer)


class Depth(nn.Module):
    """Runs a layer or not, as the step says."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x, skip):
        for index, layer in enumerate(self.layers):
            x = x if index == skip else torch.tanh(layer(x)) + x
        return self.head(x)


def layers_that_are_skipped():
    model = Depth()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    steps = []

    def step(x, y):
        loss = F.cross_entropy(model(x, skip=len(steps) % 4), y)
        optimizer.zero_grad()
        loss.backward()
        steps.append(sum(p.grad is None for p in model.parameters()))
        optimizer.step()
        return loss + steps[-1]

    return loop(model, step, optimizer)


class Experts(nn.Module):
    """Routes each row to an expert: some ranks use some experts only."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x):
        choice = self.gate(x).argmax(1)
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]))
        return out * self.gate(x).softmax(1)


def experts_that_some_rows_use():
    model = Experts()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


class SomeExperts(Experts):
    """Asks which experts a rank's rows need, so that some of them are missing from a rank's graph."""

    def forward(self, x):
        choice = self.gate(x).argmax(1)
        out = x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            rows = (choice == index).nonzero().squeeze(1)
            if len(rows):
                out[rows] = expert(x[rows])
        return out * self.gate(x).softmax(1)


def gradients_of_experts():
    model = SomeExperts()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, create_graph=True)
        penalty = sum(grad.pow(2).sum() for grad in grads if grad is not None)
        optimizer.zero_grad()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
        return loss + sum(grad is None for grad in grads)

    return loop(model, step, optimizer, batch_size=4)


def recorded_after_dropped():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad = None
        loss = F.cross_entropy(model(x), y)
        loss.backward(create_graph=True)
        sum(p.grad.pow(2).sum() for p in model.parameters()).backward()
        optimizer.step()
        for p in model.parameters():
            p.grad = None
        return loss

    return loop(model, step, optimizer)


def hooks_are_not_tried():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    calls = []
    model[2].register_forward_pre_hook(lambda module, args: calls.append(float(args[0].sum())))
    model.register_forward_pre_hook(lambda module, args: calls.append(float(args[0].sum())))
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer) + calls


def statistics_of_two_forwards():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        model.eval()
        a = model(x)
        model.train()
        b = model(x)
        loss = F.cross_entropy(a, y) + F.cross_entropy(b, y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Clamped.fails:
            raise ValueError("a backward that fails")
        return grad.clamp(-0.02, 0.02)


Clamped.fails = False


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(Clamped.apply(self.a(x)).tanh())


def function_with_a_backward_that_clamps():
    model = nn.DataParallel(WithFunction())
    optimizer = SGD(model.parameters(), 0.1)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def backward_that_fails_once():
    model = WithFunction()
    optimizer = SGD(model.parameters(), 0.1)
    rank_zero = []

    def step(x, y):
        rank_zero.append(None)
        Clamped.fails = len(rank_zero) == 2
        try:
            return trained(model, optimizer, x, y)
        except ValueError:
            return -1.0

    return loop(model, step, optimizer)


def logits_that_are_watched():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    norms = []

    def step(x, y):
        y = torch.where(x[:, 0] > 0.8, -100, y)
        out = model(x)
        out.retain_grad()
        out.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(out.grad.norm().item())
        optimizer.step()
        return loss

    return loop(model, step, optimizer) + norms


def gradients_kept_over_steps():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    norms = []
    x, y = next(iter(data()))
    F.cross_entropy(model(x), y).backward()
    kept = [p.grad for p in model.parameters()]

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        norms.extend(grad.norm().item() for grad in kept)
        optimizer.step()
        return loss

    return loop(model, step, optimizer) + norms


def a_batch_among_the_inputs():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        x = x.clone().requires_grad_()
        F.cross_entropy(model(x), y).backward(inputs=[x])
        loss = F.cross_entropy(model((x + 0.1 * x.grad.sign()).detach()), y)
        torch.autograd.backward(loss, inputs=list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return loop(model, step, optimizer)


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.seen = []

    def forward(self, x):
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(lambda grad: self.seen.append(grad.norm().item()))
        return self.b(h.tanh())


def activations_that_are_hooked():
    model = Guarded()
    optimizer = SGD(model.parameters(), 0.1)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer) + model.seen


def growing_and_freezing():
    model = Net()
    optimizer = SGD([{"params": model.features.parameters(), "lr": 0.3}, {"params": model.head.parameters()}], 0.1)
    others = []

    def step(x, y):
        turn = len(others)
        if turn == 1:
            model.features.requires_grad_(False)
        if turn == 2:
            model.features.requires_grad_(True)
            model.head = nn.Linear(6, 3)
            optimizer.add_param_group({"params": model.head.parameters(), "lr": 0.2})
        if turn == 3:
            model.features.add_module("more", nn.Linear(6, 6))
            others.append(SGD(model.features.more.parameters(), 0.5, momentum=0.9))
        loss = F.cross_entropy(model(x), y)
        for each in [optimizer, *filter(None, others)]:
            each.zero_grad()
        loss.backward()
        for each in [optimizer, *filter(None, others)]:
            each.step()
        others.append(None)
        return loss

    return loop(model, step, optimizer)


def two_models_one_optimizer():
    encoder, head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 0.05)

    def step(x, y):
        loss = F.cross_entropy(head(encoder(x)), y)
        return descend(loss, optimizer)

    return loop(encoder, step, optimizer) + everything(head)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(4, 6), nn.Linear(6, 4)
        self.up.weight = nn.Parameter(self.down.weight.t().contiguous())
        self.twice = nn.Linear(4, 4)
        self.twice.weight = nn.Parameter(torch.eye(4))
        self.again = self.twice

    def forward(self, x):
        return self.again(self.up(torch.tanh(self.down(self.twice(x)))))


def tied_weights():
    model = Tied()
    other = nn.Linear(4, 4)
    other.weight = model.twice.weight
    optimizer = (
        SGD({*model.parameters(), *other.parameters()}, 0.1, momentum=0.9)
        if False
        else SGD([*model.parameters(), other.bias], 0.1, momentum=0.9)
    )

    def step(x, y):
        loss = F.mse_loss(model(x), x) + other(x).pow(2).mean()
        return descend(loss, optimizer)

    return loop(model, step, optimizer) + everything(other)


def hooks_on_parameters():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    seen = []
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    handle = model[2].bias.register_hook(lambda grad: seen.append(grad.norm().item()))
    model[2].weight.register_hook(lambda grad: 2 * grad)
    model[2].weight.register_hook(lambda grad: grad.sign() * grad.abs().sqrt())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        if len(seen) == 6:
            handle.remove()
        return loss

    return loop(model, step, optimizer) + seen


def hooks_there_before_training():
    model = mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: torch.clamp(grad, -0.02, 0.02))
    model = nn.DataParallel(model)
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def optimizer_in_backward():
    model = mlp()
    each = {p: SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def update(parameter):
        each[parameter].step()
        each[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return loop(model, step)


def hook_on_an_output():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)
    seen = []

    def step(x, y):
        out = model(x)
        out.register_hook(lambda grad: seen.append(grad.norm().item()) or grad * 2)
        loss = F.cross_entropy(out, y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer) + seen


def hooks_on_modules():
    model = Net()
    optimizer = SGD(model.parameters(), 0.3)
    seen, features = [], {}
    model.features.register_forward_hook(lambda module, args, out: features.update(z=out))
    model.head.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].norm().item()))
    model.register_forward_pre_hook(lambda module, args: (args[0] * len(args[0]) / 8,))

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss = loss + 0.1 * features["z"].std(0).mean()
        return descend(loss, optimizer)

    return loop(model, step, optimizer) + seen


def hook_on_the_model_itself():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)
    seen = []
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    handle = model.register_forward_hook(lambda module, args, out: seen.append(out.max().item()) or out * 2)
    said += loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    handle.remove()
    return said + loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1) + seen


def hooks_that_hooks_set_up_and_take_away():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)
    seen, handles = [], []

    def first(module, args):
        handles.pop().remove()
        once.remove()
        handles.append(module.register_forward_hook(lambda module, args, out: seen.append(out.max().item())))
        module.forward = lambda x: 2 * type(module).forward(module, x)

    handles.append(model.register_forward_hook(lambda module, args, out: seen.append(-1.0)))
    once = model.register_forward_pre_hook(first)
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    handles.pop().remove()
    said += loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    return said + seen + [float(len(model._forward_hooks) + len(model._forward_pre_hooks))]


def a_hook_that_a_forward_takes_away():
    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x):
            while handles:
                handles.pop().remove()
            return self.net(x)

    seen, handles = [], []
    model = Hooked()
    optimizer = SGD(model.parameters(), 0.3)
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].max().item()))
    handles.append(model.register_forward_hook(lambda module, args, out: seen.append(out.max().item())))
    return said + loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1) + seen


def hooks_of_a_model_that_calls_itself():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x, depth=3):
            return self.head(x) if depth == 0 else self(torch.tanh(self.body(x)), depth - 1)

    def fitted(model, hooked):
        seen = []
        hooked.register_forward_pre_hook(lambda module, args: seen.append(args[0].max().item()))
        hooked.register_forward_hook(lambda module, args, out: seen.append(out.mean().item()) or out * 1.5)
        hooked.register_full_backward_hook(lambda module, into, out: seen.append(out[0].norm().item()))
        optimizer = SGD(model.parameters(), 0.3)
        return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1) + seen

    model, inner = Deep(), Deep()
    return fitted(model, model) + fitted(nn.Sequential(inner, nn.Tanh()), inner)


def calls_of_modules_that_are_timed():
    """By wrappers that stay; optimizers are made below and above them."""
    timed, original, seen = [], nn.Module.__call__, []

    def wrap():
        before = nn.Module.__call__

        def call(self, *args, **kwargs):
            timed.append(1.0)
            return before(self, *args, **kwargs)

        nn.Module.__call__ = call

    def fitted(model, wraps):
        optimizer = SGD(model.parameters(), 0.3)
        model.register_forward_hook(lambda module, args, out: seen.append(out.max().item()))
        if wraps:
            wrap()
        return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)

    try:
        return fitted(mlp(), True) + fitted(mlp(), False) + fitted(Net(), True) + seen + [timed[0]]
    finally:
        nn.Module.__call__ = original


def a_model_of_a_registered_class():
    """The registry hears of the author's classes, each once."""
    kinds = {}

    class Registered(nn.Module):
        def __init_subclass__(cls, key, **kwargs):
            super().__init_subclass__(**kwargs)
            kinds[key] = [*kinds.get(key, []), cls]

    class First(Registered, key="first"):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            return self.net(x)

    class Second(First, key="second"):
        def __init_subclass__(cls, **kwargs):
            raise TypeError("it is final")

    said = []
    for kind in (First, Second):
        model = kind()
        optimizer = SGD(model.parameters(), 0.3)
        said += [trained(model, optimizer, x, y).item() for x, y in data(8)]
        said += [isinstance(model, kind), model.__class__ is kind]

    class Third(First, key="third"):
        """Of a class that was looked at before."""

    return [*said, kinds == {"first": [First], "second": [Second], "third": [Third]}]


def a_model_of_a_class_that_a_metaclass_registers():
    kinds = []

    class Registry(abc.ABCMeta):
        def __new__(cls, name, bases, attributes, key=None):
            assert key not in kinds
            return super().__new__(cls, name, bases, attributes)

        def __init__(cls, name, bases, attributes, key=None):
            super().__init__(name, bases, attributes)
            kinds.append(key)

    class Registered(nn.Sequential, metaclass=Registry, key="net"):
        pass

    model = Registered(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    optimizer = SGD(model.parameters(), 0.3)
    said = [trained(model, optimizer, x, y).item() for x, y in data(8)]
    return [*said, isinstance(model, Registered), isinstance(nn.Sequential(), type(model)), len(kinds)]


def trained(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    return descend(loss, optimizer)


def loading_and_casting():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)
    saved = copy.deepcopy(model.state_dict())
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    model.load_state_dict(saved)
    said += loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    precise = copy.deepcopy(model)
    model.float()
    rounded = loop(model, lambda x, y: trained(model, optimizer, x.float(), y), epochs=1)
    other = SGD(precise.parameters(), 0.3)
    wanted = loop(precise, lambda x, y: trained(precise, other, x, y), epochs=1)
    said.append(sum(abs(a - b) < 1e-5 for a, b in zip(rounded[:3], wanted[:3], strict=True)))
    model.load_state_dict(saved)
    model.double()
    model.load_state_dict(saved)
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    return said + loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)


def gradient_penalty():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)

    def step(x, y):
        x = x.clone().requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + (grad.norm(dim=1) - 1).pow(2).mean()
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def attack_on_the_input():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        x = x.clone()
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        attacked = (x + 0.1 * x.grad.sign()).detach()
        return trained(model, optimizer, attacked, y)

    return loop(model, step, optimizer)


class SecondOrder(Optimizer):
    """Scales by Hutchinson's estimate of the diagonal of the Hessian, with a fixed probe."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in parameters]
        probes = [torch.ones_like(p) for p in parameters]
        products = torch.autograd.grad(grads, parameters, probes)
        with torch.no_grad():
            for p, g, h in zip(parameters, grads, products, strict=True):
                p -= self.param_groups[0]["lr"] * g.detach() / (h.abs() + 1)


def second_order_optimizer():
    model = mlp()
    optimizer = SecondOrder(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(create_graph=True)
        optimizer.step()
        return loss

    return loop(model, step)


def inner_steps_by_functional_call():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        names, values = zip(*model.named_parameters(), strict=True)
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, values, create_graph=True)
        fast = {name: value - 0.5 * grad for name, value, grad in zip(names, values, grads, strict=True)}
        outer = F.cross_entropy(torch.func.functional_call(model, fast, (x.flip(1),)), y)
        optimizer.zero_grad()
        outer.backward()
        optimizer.step()
        return outer

    return loop(model, step, optimizer)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))


def checkpointing():
    model = Checkpointed(False)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def reentrant_checkpointing():
    model = Checkpointed(True)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def checkpointing_the_model():
    model = Net()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x, y):
        out = checkpoint(model, x.clone().requires_grad_(), use_reentrant=True)
        loss = F.cross_entropy(out + checkpoint(model, x, use_reentrant=False), y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def checkpointing_inside_checkpointing():
    first, second = mlp(), nn.Linear(4, 3)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1)

    def step(x, y):
        x = x.clone().requires_grad_()
        out = checkpoint(lambda z: second(z) + checkpoint(first, z, use_reentrant=False), x, use_reentrant=False)
        loss = F.cross_entropy(out, y)
        return descend(loss, optimizer) + x.grad.pow(2).sum()

    return loop(first, step, optimizer) + everything(second)


def checkpointing_dropout():
    """The masks differ from one process's; computed again they must be the same, or gradients and loss disagree."""
    model = nn.Sequential(nn.Linear(4, 64, bias=False), nn.Dropout(0.5))
    optimizer = SGD(model.parameters(), 0.0)
    x, _ = next(iter(data(8)))
    out = checkpoint(model, x, use_reentrant=False)
    optimizer.zero_grad()
    out.sum().backward()
    # d out.sum() / d W . W = out.sum() for a linear map, whatever the mask.
    return [(model[0].weight.grad * model[0].weight).sum().item() - out.sum().item()]


class Centred(nn.Module):
    """Mixes the rows itself, around a part that does not."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 16, bias=False), nn.Dropout(0.5))

    def forward(self, x):
        return self.part(x - x.mean(0))


def checkpointing_dropout_of_several_modules():
    """From step to step more of them run on rows, and computed again they must run as they did."""
    around, after = Centred(), nn.Sequential(nn.Linear(16, 3, bias=False), nn.Dropout(0.5))
    optimizer = SGD([*around.parameters(), *after.parameters()], 0.1)
    said = []
    for x, _ in data(5):
        optimizer.zero_grad()
        out = checkpoint(lambda x: after(around(x)), x, use_reentrant=False)
        out.sum().backward()
        # Linear in each of the two weights, whatever the masks.
        weights = around.part[0].weight, after[0].weight
        said += [(weight.grad * weight).sum().item() - out.sum().item() for weight in weights]
        optimizer.step()
    return said


class Attending(nn.Module):
    """Drops shares of attention inside torch's kernel."""

    def __init__(self, mixes):
        super().__init__()
        self.body = nn.MultiheadAttention(4, 2, dropout=0.5, bias=False, batch_first=True)
        self.mixes = mixes

    def forward(self, x):
        x = x - x.mean(0) if self.mixes else x
        return self.body(x, x, x, need_weights=False)[0]


def checkpointing_dropout_inside_attention():
    """On batches, where it is observed, and on rows: each rank draws for its own rows, and again the same."""
    said = []
    for model in (Attending(False), Attending(True)):
        optimizer = SGD(model.parameters(), 0.1)
        for x, _ in data(8):
            optimizer.zero_grad()
            out = checkpoint(model, x.unsqueeze(1).expand(-1, 3, -1), use_reentrant=False)
            out.sum().backward()
            weight = model.body.out_proj.weight
            said += [(weight.grad * weight).sum().item() - out.sum().item()]
            optimizer.step()
    return said


def rows_draw_masks_of_their_own_inside_attention():
    model = Attending(False)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, _ in data(8, n=8):
            alike = torch.ones_like(x).unsqueeze(1).expand(-1, 3, -1)
            out = model(alike * torch.arange(3.0).view(1, 3, 1))
            descend(out.square().sum(), optimizer)
            said += [float((out[i] - out[0]).abs().max() > 1e-6) for i in range(1, 8)]
    return said


def norms_by_parametrization():
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)),
        nn.Tanh(),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        nn.utils.spectral_norm(nn.Linear(6, 3)),
    )
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def clipping():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.5, momentum=0.9)
    norms = []

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), 0.05)))
        clip_grad_value_(model[2].parameters(), 0.01)
        optimizer.step()
        return loss

    return loop(model, step, optimizer) + norms


def without_an_optimizer():
    model = nn.DataParallel(mlp())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        said = sum(p.grad.norm().item() for p in model.parameters())
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.3)
        return loss + said

    return loop(model, step)


def without_an_optimizer_or_a_wrapper():
    """Nothing says which module is the model, so that everything runs as written, on batches."""
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        said = sum(p.grad.norm().item() for p in model.parameters())
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.3 * p.grad
        return loss + said

    return loop(model, step)


def closures():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return loop(model, step)


def every_optimizer():
    said = []
    for kind in sorted(vars(torch.optim).values(), key=str):
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            continue
        if kind in (Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam):  # they have cases of their own
            continue
        torch.manual_seed(0)
        model = mlp()
        trainable = [p for p in model.parameters() if p.dim() == 2] if kind.__name__ == "Muon" else model.parameters()
        optimizer = kind(trainable, lr=0.01)
        said += loop(model, lambda x, y, m=model, o=optimizer: trained(m, o, x, y), optimizer, epochs=1)
    return said


class Sharpness(SGD):
    """Two steps with a gradient each (Foret et al. 2021)."""

    def up(self):
        self.held = []
        for p in self.param_groups[0]["params"]:
            self.held.append(0.05 * p.grad / (p.grad.norm() + 1e-12))
            p.data.add_(self.held[-1])
        self.zero_grad()

    def down(self):
        for p, shift in zip(self.param_groups[0]["params"], self.held, strict=True):
            p.data.sub_(shift)
        self.step()


def sharpness_aware():
    model = mlp()
    optimizer = Sharpness(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.up()
        F.cross_entropy(model(x), y).backward()
        optimizer.down()
        return loss

    return loop(model, step, optimizer)


def gradient_surgery():
    """Keeps gradients of one loss over the backward of another."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward(retain_graph=True)
        first = [p.grad for p in model.parameters()]
        optimizer.zero_grad()
        out.pow(2).mean().backward()
        for p, kept in zip(model.parameters(), first, strict=True):
            p.grad = p.grad + kept * (kept * p.grad).sum().sign()
        optimizer.step()
        return out.sum()

    return loop(model, step, optimizer)


def accumulated(read):
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(batches := list(data(2))):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            if read and i % 3 == 1:
                norms.append(model[0].weight.grad.norm().item())
            if i % 4 == 3 or i == len(batches) - 1:
                optimizer.step()
                optimizer.zero_grad()
    return norms + everything(model, optimizer)


def accumulation():
    return accumulated(read=False)


def accumulation_with_readings():
    return accumulated(read=True)


def accumulation_thrown_away():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    for _ in range(3):
        for i, (x, y) in enumerate(data(2)):
            F.cross_entropy(model(x), y).backward()
            if i % 4 == 2:
                optimizer.step()
            if i % 4 == 3:
                optimizer.zero_grad(set_to_none=i % 8 == 3)
    return everything(model, optimizer)


def skipped_by_the_scaler():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    steps = []

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scale = float("inf") if len(steps) in (2, 3) else 1.0
        scaler.scale(loss * scale if scale == 1 else (loss + model[0].weight[0, 0] * scale)).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        steps.append(scaler.get_scale())
        return steps[-1]

    return loop(model, step, optimizer)


def critic_and_generator():
    critic, generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Linear(2, 4)
    first, second = SGD(critic.parameters(), 0.1, momentum=0.9), SGD(generator.parameters(), 0.1, momentum=0.9)

    def step(x, y):
        critic.zero_grad()
        real = F.softplus(-critic(x)).mean()
        real.backward()
        noise = torch.randn(len(x), 2)
        fake = generator(noise)
        F.softplus(critic(fake.detach())).mean().backward()
        first.step()
        generator.zero_grad()
        loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        second.step()
        return real + loss

    torch.manual_seed(5)
    return loop(critic, step, first, second) + everything(generator)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4, sparse=True)
        self.bags = nn.EmbeddingBag(20, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words, with_bags):
        z = self.words(words).mean(1)
        return self.head(z + self.bags(words) if with_bags else z)


def sparse_gradients():
    model = Bag()
    sparse = torch.optim.SparseAdam([model.words.weight, model.bags.weight], 0.1)
    dense = SGD(model.head.parameters(), 0.3)
    said = []
    for turn in range(3):
        for x, y in data():
            words = (x.abs() * 7).long().clamp(max=19)
            loss = F.cross_entropy(model(words, turn == 1), y)
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            said.append(float(loss))
            sparse.step()
            dense.step()
    return said + everything(model, sparse)


class Neighbours(nn.Module):
    """As LightGCN: its graph is a buffer."""

    def __init__(self, graph):
        super().__init__()
        self.register_buffer("graph", graph)
        self.table = nn.Embedding(20, 3)

    def forward(self, rows):
        return torch.sparse.mm(self.graph, self.table.weight)[rows]


def trained_on(graph):
    model = Neighbours(graph)
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        return descend(F.cross_entropy(model((x[:, 0].abs() * 7).long().clamp(max=19)), y), optimizer)

    return loop(model, step)


def graphs_in_sparse_buffers():
    edges = torch.eye(20) + torch.rand(20, 20).gt(0.8)
    return [*trained_on(edges.to_sparse()), *trained_on(edges.to_sparse_csr()), *trained_on(edges.to_sparse_csc())]


class Tables(nn.Module):
    """Tables of its own, whose gradients are sparse without a layer that says so."""

    def __init__(self, mixes):
        super().__init__()
        self.words, self.pairs, self.longs = (nn.Parameter(torch.randn(20, 3)) for _ in range(3))
        self.unused = nn.Parameter(torch.randn(20, 3))
        self.head, self.mixes = nn.Linear(3, 3), mixes

    def forward(self, x):
        words = (x.abs() * 7).long().clamp(max=19)
        z = F.embedding(words, self.words, sparse=True).mean(1)
        z = z + F.embedding_bag(words, self.pairs, mode="sum", sparse=True)
        z = z + F.embedding(words[:, 0], self.longs, sparse=True, max_norm=1.0)
        return self.head(z - z.mean(0) if self.mixes else z)


def sparse_gradients_of_plain_parameters():
    said = []
    for mixes in (False, True):
        model = Tables(mixes)
        optimizer = SGD(model.parameters(), 0.3)
        said += loop(model, lambda x, y: descend(F.cross_entropy(model(x), y), optimizer), optimizer)  # noqa: B023
    return said


def sparse_gradients_that_come_later():
    """Also of a layer that does not ask for them, in a model that DDP trained before."""
    model, words = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), nn.Embedding(20, 3)
    model.words = words
    model.forward = lambda x, sparse: model[1](model[0](F.embedding(x, words.weight, sparse=sparse).mean(1)))
    optimizer, said = SGD(model.parameters(), 0.3), []
    for epoch in range(3):
        for x, y in data():
            out = model((x.abs() * 7).long().clamp(max=19), sparse=epoch > 0)
            said.append(float(descend(F.cross_entropy(out, y), optimizer).detach()))
    return said + everything(model)


def sparse_gradients_beside_dense_ones():
    """Of a weight that serves elsewhere as well, and by ``torch.autograd.grad``."""
    model = Bag()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for step, (x, y) in enumerate(data()):
        words = (x.abs() * 7).long().clamp(max=19)
        loss = F.cross_entropy(model(words, True), y) + F.embedding(y, model.words.weight, sparse=True).pow(2).sum()
        if step % 2:
            loss = loss + F.embedding(y + 2, model.words.weight).exp().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        descend(loss, optimizer)
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            said += [float(gradient.is_sparse), *both(gradient), float(parameter.grad.is_sparse), *both(parameter.grad)]
    return said


def converted_and_back():
    """To save it, to step in another precision, or a layer alone: autograd has other nodes of the parameters then."""
    model = Net()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.5)
    said, turn = [], 0
    for _ in range(3):
        for x, y in data():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if turn > 8:
                for p in model.parameters():
                    p.data = p.data.float()
            elif turn == 2:
                model.float().double()
            elif turn in (4, 6):
                model.head.half().double()
            said += [float(loss), *(v for p in model.parameters() if p.grad is not None for v in both(p.grad))]
            if turn > 8:
                for p in model.parameters():
                    p.data = p.data.double()
            optimizer.step()
            turn += 1
    return said + everything(model)


def a_critic_that_is_converted_and_then_frozen():
    """To save it, or after a backward that failed; the generator's step comes first."""
    generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    first, second = SGD(generator.parameters(), 0.1, 0.5), SGD(critic.parameters(), 0.1, 0.5)
    said = []
    for step, (x, _) in enumerate(batch for _ in range(4) for batch in data()):
        critic.requires_grad_(False)
        said.append(float(descend(critic(generator(x)).mean(), first)))
        said += [float(p.grad is None) for p in critic.parameters()]
        critic.requires_grad_(True)
        out = critic(generator(x).detach())
        if step == 8:
            out.register_hook(fails)
            try:
                out.sum().backward()
            except KeyError:
                said.append(-1.0)
            out = critic(generator(x).detach())
        said.append(float(descend(out.mean() - critic(x).mean(), second)))
        if step == 4:
            critic.float().double()
        if step == 6:
            out = critic(x)
            out.register_hook(fails)
            try:
                out.sum().backward()
            except KeyError:
                said.append(-2.0)
    return said + everything(generator, first, second)


def fails(grad):
    raise KeyError


def layers_that_grow():
    model = mlp()
    said = []
    for width in (6, 8, 7):
        first, second = model[0], model[2]
        for p, shape in ((first.weight, (width, 4)), (first.bias, (width,)), (second.weight, (3, width))):
            p.data = torch.linspace(-1, 1, p.new_empty(shape).numel()).reshape(shape)
            p.grad = None
        optimizer = SGD(model.parameters(), 0.2)
        for x, y in data():
            said.append(float(descend(F.cross_entropy(model(x), y), optimizer)))
    return said + everything(model)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 6, sparse=True), nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.words((x.abs() * 7).long().clamp(max=19)).flatten(1))


def sparse_steps_within_backward():
    model = Words()
    each = {p: SGD([p], 0.1) for p in model.parameters()}

    def step(parameter):
        each[parameter].step()
        each[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    said = []
    for x, y in data():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        said.append(float(loss))
    return said + everything(model)


def sparse_hooks_of_a_tied_weight():
    """Of a table that is the head as well its gradient is dense, and what a hook makes of it arrives."""
    model, seen = Words(), []
    tied = nn.Linear(6, 20, bias=False)
    tied.weight = model.words.weight
    model.tied = tied
    model.words.weight.register_hook(lambda g: g.to_dense() * 2 if g.is_sparse else g * 2)
    model.words.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.to_dense().norm().item()))
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        out = model(x)
        said.append(float(descend(F.cross_entropy(out, y) + model.tied(x[:, :1].expand(-1, 6)).mean(), optimizer)))
    return said + seen + everything(model)


def hooks_on_gradients_in_one_buffer():
    model = mlp()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.register_hook(lambda g: g.clamp(-0.05, 0.05))
    flat, start = torch.zeros(sum(p.numel() for p in parameters)), 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    said = []
    for x, y in data():
        flat.zero_()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        said += [float(loss), *both(flat)]
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(parameters) - 0.3 * flat, parameters
            )
    return said + everything(model)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)

    def forward(self, x):
        features = self.body(x)
        return self.head(features), features


def an_output_by_another():
    """Grad-CAM, and a path length: gradients of one output of a model by another one that it was computed from."""
    model = TwoOutputs()
    optimizer = SGD(model.parameters(), 0.3)
    said = []
    for x, y in data():
        scores, features = model(x)
        features.retain_grad()
        features.register_hook(lambda g: said.append(g.norm().item()))
        (slope,) = torch.autograd.grad((scores * scores).sum(), features, create_graph=True)
        said.append(slope.norm().item())
        descend(F.cross_entropy(scores, y) + slope.norm(dim=1).mean(), optimizer)
        said.append(features.grad.norm().item())
    return said + everything(model)


def an_output_that_is_written_to():
    """Its gradient is that of what was written, from then on."""
    model = TwoOutputs()
    optimizer = SGD(model.parameters(), 0.3)
    said = []
    for x, y in data():
        scores, features = model(x)
        scores.retain_grad()
        scores /= 3
        scores.register_hook(lambda g: said.append(g.norm().item()))
        (slope,) = torch.autograd.grad(F.cross_entropy(scores, y), scores, retain_graph=True)
        said.append(slope.norm().item())
        descend(F.cross_entropy(scores, y) + features.pow(2).mean(), optimizer)
        said.append(scores.grad.norm().item())
    return said + everything(model)


def a_lazy_layer_beside():
    """Made while a model is trained, and not called before."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)
    said = [float(descend(F.cross_entropy(model(x), y), optimizer)) for x, y in data()]
    torch.manual_seed(3)
    late = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))
    late(torch.ones(2, 4))
    optimizer = SGD(late.parameters(), 0.3)
    said += [float(descend(F.cross_entropy(late(x), y), optimizer)) for x, y in data()]
    return said + everything(model, late)


def an_output_that_no_loss_is_of():
    model = TwoOutputs()
    optimizer = SGD(model.parameters(), 0.3)
    said = []
    for x, y in data():
        scores, features = model(x)
        scores.register_hook(lambda g: said.append(g.norm().item()))
        features.register_hook(lambda g: said.append(g.norm().item()))
        descend(features.pow(2).mean() if len(said) % 2 else F.cross_entropy(scores, y), optimizer)
    return said + everything(model)


def jacobian_rows_at_once():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out = model(x)
        share = torch.autograd.grad(
            out.mean(0), model[2].weight, torch.eye(3), retain_graph=True, is_grads_batched=True
        )
        listed = torch.autograd.grad(
            [out.sum(0)], [model[2].bias], [torch.eye(3)], retain_graph=True, is_grads_batched=True
        )
        return descend(F.cross_entropy(out, y) + share[0].pow(2).sum() + listed[0].sum(), optimizer)

    return loop(model, step, optimizer)


def only_some_inputs():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(inputs=[model[2].weight, model[2].bias], retain_graph=True)
        said = sum(p.grad is None for p in model.parameters()) + model[2].bias.grad.norm()
        loss.backward(inputs=list(model[0].parameters()))
        optimizer.step()
        return loss + said

    return loop(model, step, optimizer)


class Towers(nn.Module):
    """An actor and a critic in one module, as they are written."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.critic = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        return self.actor(x), self.critic(x)


def a_backward_from_each_output():
    model = Towers()
    optimizer = SGD(model.parameters(), 0.3, weight_decay=0.1)

    def step(x, y):
        logits, value = model(x)
        optimizer.zero_grad()
        policy = F.cross_entropy(logits, y)
        policy.backward()
        said = sum(p.grad is None for p in model.parameters())
        F.mse_loss(value.squeeze(1), y.double()).backward()
        optimizer.step()
        return policy + said

    return loop(model, step, optimizer)


def a_step_between_the_backwards_of_two_outputs():
    model = Towers()
    first, second = SGD(model.actor.parameters(), 0.3), SGD(model.critic.parameters(), 0.3)

    def step(x, y):
        logits, value = model(x)
        first.zero_grad()
        second.zero_grad()
        policy = F.cross_entropy(logits, y)
        policy.backward()
        first.step()
        F.mse_loss(value.squeeze(1), y.double()).backward()
        second.step()
        return policy

    return loop(model, step, first, second)


def an_output_that_no_loss_uses():
    model = Towers()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9, weight_decay=0.1)

    def step(x, y):
        loss = descend(F.cross_entropy(model(x)[0], y), optimizer)
        return loss + sum(p.grad is None for p in model.parameters())

    return loop(model, step, optimizer)


class Tasks(nn.Module):
    """Gives a loss for each of its heads."""

    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, y):
        hidden = torch.tanh(self.body(x))
        return F.cross_entropy(self.a(hidden), y), F.cross_entropy(self.b(hidden), y.flip(0))


def a_loss_that_is_not_used():
    model = Tasks()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9, weight_decay=0.1)

    def step(x, y):
        loss = descend(model(x, y)[0], optimizer)
        return loss + sum(p.grad is None for p in model.parameters())

    return loop(model, step, optimizer)


def losses_one_after_the_other():
    model = Tasks()
    optimizer = SGD(model.parameters(), 0.3, weight_decay=0.1)

    def step(x, y):
        first, second = model(x, y)
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        said = sum(p.grad is None for p in model.parameters())
        second.backward()
        optimizer.step()
        return first + second + said

    return loop(model, step, optimizer)


def an_input_that_only_an_unused_output_reads():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.g = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, z):
            return self.f(x), self.g(z)

    model = Two()
    optimizer = SGD(model.parameters(), 0.3, weight_decay=0.1)

    def step(x, y):
        z = (x * 2).detach().requires_grad_()
        loss = descend(F.cross_entropy(model(x, z)[0], y), optimizer)
        return loss + (z.grad is None)

    return loop(model, step, optimizer)


def gradients_of_what_is_iterated_once():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        said = loss.item()
        grads = torch.autograd.grad(loss, model.parameters(), retain_graph=True)
        named = torch.autograd.grad(loss, dict(model.named_parameters()).values(), retain_graph=True)
        some = torch.autograd.grad(loss, filter(lambda p: p.dim() == 2, model.parameters()), retain_graph=True)
        by_name = torch.autograd.grad(loss, dict(model.named_parameters()), retain_graph=True)
        said += sum(grad.abs().sum().item() for _, grad in sorted(by_name.items()))
        optimizer.zero_grad()
        loss.backward(inputs=model.parameters())
        for parameter, grad, other in zip(model.parameters(), grads, named, strict=True):
            parameter.grad += 0.5 * grad + 0.1 * other
        optimizer.step()
        return said + sum(grad.norm().item() for grad in some)

    return loop(model, step, optimizer)


def layers_that_take_turns_in_one_step():
    model = mlp()
    first, second = model[2], nn.Linear(6, 3)
    optimizer = SGD([*model.parameters(), *second.parameters()], 0.3)

    def step(x, y):
        model[2] = first
        before = model(x)
        model[2] = second
        loss = F.cross_entropy(before, y) + F.cross_entropy(model(x), y)
        return descend(loss, optimizer) + first.weight.grad.norm() + second.weight.grad.norm()

    return loop(model, step, optimizer) + everything(first, second)


def layers_that_take_turns_and_gradients_by_hand():
    model = mlp()
    first, second = model[2], nn.Linear(6, 3)
    optimizer = SGD([*model.parameters(), *second.parameters()], 0.3)

    def step(x, y):
        model[2] = first
        before = F.cross_entropy(model(x), y)
        model[2] = second
        after = F.cross_entropy(model(x), y)
        (gradient,) = torch.autograd.grad(before, first.weight, retain_graph=True)
        with torch.no_grad():
            first.bias -= 0.1 * gradient.sum(1)
        return descend(after, optimizer) + gradient.norm() + first.bias.sum()

    return loop(model, step, optimizer) + everything(first, second)


def layers_that_take_turns_and_hooks():
    model = mlp()
    first, second = model[2], nn.Linear(6, 3)
    optimizer, seen, after = SGD([*model.parameters(), *second.parameters()], 0.3), [], []
    first.weight.register_hook(lambda grad: seen.append(grad.norm().item()) or grad.clamp(-0.01, 0.01))
    first.bias.register_post_accumulate_grad_hook(lambda bias: after.append(bias.grad.norm().item()))

    def step(x, y):
        model[2] = first
        before = F.cross_entropy(model(x), y)
        model[2] = second
        return descend(before + F.cross_entropy(model(x), y), optimizer)

    return loop(model, step, optimizer) + everything(first, second) + seen + after


def hooks_that_read_other_gradients():
    model, apart = mlp(), nn.Linear(4, 3)
    optimizer, seen, after = SGD([*model.parameters(), *apart.parameters()], 0.3), [], []

    def scaled(grad):
        seen.append(model[2].weight.grad.norm().item() + apart.weight.grad.norm().item())
        return grad * min(1.0, seen[-1])

    model[0].weight.register_hook(scaled)
    model[0].bias.register_post_accumulate_grad_hook(lambda bias: after.append(apart.bias.grad.sum().item()))
    said = loop(model, lambda x, y: descend(F.cross_entropy(model(x) + apart(x), y), optimizer), optimizer)
    return said + seen + after


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 6)

    def forward(self, x):
        z = self.net(x)
        logits = z @ z.t()
        middle = z.mean(0)
        return logits, logits.t(), middle, (z - middle).square().sum()


def outputs_of_one_another_that_are_hooked():
    model = Pairs()
    optimizer, seen = SGD(model.parameters(), 0.1), []

    def step(x, y):
        images, texts, middle, spread = model(x)
        images.retain_grad()
        images.register_hook(lambda grad: seen.append(grad.norm().item()) or grad.clamp(-0.02, 0.02))
        middle.register_hook(lambda grad: seen.append(grad.norm().item()))
        (by_hand,) = torch.autograd.grad(spread, middle, retain_graph=True)
        targets = torch.arange(len(x))
        loss = F.cross_entropy(images, targets) + F.cross_entropy(texts, targets) + 0.01 * spread
        return descend(loss, optimizer) + images.grad.norm() + by_hand.norm()

    return loop(model, step, optimizer) + seen


def penalties_on_sparse_gradients():
    model = nn.Sequential(nn.Embedding(5, 6, sparse=True), nn.Tanh(), nn.Linear(6, 3))
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(y + (x[:, 0] > 0)), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
        return descend(loss + 0.1 * sum(grad.square().sum() for grad in dense), optimizer)

    return loop(model, step, optimizer)


def the_whole_is_met_after_its_parts():
    model = Net()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        hidden = model.features(x)
        out = model.head(hidden)
        with torch.no_grad():
            said = model(x).sum()
        return descend(F.cross_entropy(out, y), optimizer) + said

    return loop(model, step, optimizer)


def two_learners_of_one_forward():
    base, one, two = mlp(), mlp(), mlp()
    optimizer = SGD([*one.parameters(), *two.parameters()], 0.3)

    def step(x, y):
        outs = [torch.func.functional_call(base, dict(net.named_parameters()), (x,)) for net in (one, two)]
        return descend(sum(F.cross_entropy(out, y) for out in outs), optimizer)

    return loop(one, step, optimizer) + everything(two)


def gradients_of_outputs_that_are_set():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out = model(x)
        out.retain_grad()
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        out.grad = None
        said = float(out.grad is None)
        loss.backward()
        said += out.grad.norm().item()
        out.grad = out.grad * 2
        said += out.grad.norm().item()
        optimizer.step()
        return loss + said

    return loop(model, step, optimizer)


def gradients_of_inputs_that_are_deleted():
    """Adversarial training, whose first backward is for the inputs: gradients of parameters wait meanwhile."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)
    seen = []

    def step(x, y):
        x = x.clone().requires_grad_()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        worst = x.detach() + 0.1 * x.grad.sign()
        del x.grad
        seen.append(float(x.grad is None))
        loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(worst), y)
        loss.backward()
        seen.extend(both(x.grad))
        del model[0].weight.grad
        optimizer.step()
        return loss

    return loop(model, step, optimizer) + seen


def gradients_of_what_parts_of_a_trained_model_compute():
    """Grad-CAM and feature penalties: a part of the model is called, and a plain value is of some or of all rows."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    kept, seen = [], []
    before = loop(model, lambda x, y: descend(F.cross_entropy(model(x), y), optimizer), optimizer)

    def step(x, y):
        features = model[0](x)
        out = model[2](model[1](features))
        alike = -(F.log_softmax(features @ features.t(), 1).diagonal()).mean()
        for value in (alike, out[0, 0], out.mean(), out[:, 0].sort()[0][-1], torch.cdist(out, out).max()):
            (of_features,) = torch.autograd.grad(value, features, retain_graph=True)
            seen.extend(both(of_features))
        hook = model[0].register_forward_hook(lambda module, given, got: kept.append(got))
        out = model(x)
        hook.remove()
        for value in (out[0, 0], out[:, 0].sum(), out.topk(2)[0].sum()):
            of_kept, of_weight = torch.autograd.grad(value, [kept[-1], model[2].weight], retain_graph=True)
            seen.extend([*of_kept.flatten().tolist()[:6], *both(of_kept), *both(of_weight)])
        (of_features,) = torch.autograd.grad(alike, features, create_graph=True)
        return descend(F.cross_entropy(out, y) + 0.1 * of_features.pow(2).sum(1).mean(), optimizer)

    return before + loop(model, step, optimizer) + seen


def an_adjoint_that_calls_a_model_with_a_plain_tensor():
    """As torchsde's ``sdeint_adjoint`` does, without a loader: the model is called inside, first without a graph."""

    class Adjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, x, *parameters):
            ctx.function = function
            ctx.save_for_backward(x, *parameters)
            with torch.no_grad():
                return function(x)

        @staticmethod
        def backward(ctx, grad):
            x, *parameters = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                grads = torch.autograd.grad(ctx.function(x), (x, *parameters), grad)
            return (None, *grads)

    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(4):
        out = Adjoint.apply(model, torch.randn(7, 4), *model.parameters())
        said.append(descend(out.pow(2).mean(), optimizer).item())
    return said + everything(model, optimizer)


class Coupled(torch.autograd.Function):
    """Keeps outputs alone, from which its backward computes the inputs again, and runs a backward for its parts."""

    @staticmethod
    def forward(ctx, x, blocks, scale):
        ctx.blocks, ctx.scale = blocks, scale
        with torch.no_grad():
            for f, g in blocks:
                first, second = x.chunk(2, 1)
                first = first + scale * f(second)
                x = torch.cat([first, second + g(first)], 1)
        ctx.out = x.detach()
        return x

    @staticmethod
    def backward(ctx, grad):
        (first, second), (to_first, to_second) = ctx.out.chunk(2, 1), grad.chunk(2, 1)
        for f, g in reversed(ctx.blocks):
            with torch.enable_grad():
                first = first.detach().requires_grad_()
                made = g(first)
                torch.autograd.backward(made, to_second)
            with torch.no_grad():
                second, to_first = second - made, to_first + first.grad
            with torch.enable_grad():
                second = second.detach().requires_grad_()
                made = ctx.scale * f(second)
                made.backward(to_first)
            with torch.no_grad():
                first, to_second = first - made, to_second + second.grad
        return torch.cat([to_first, to_second], 1), None, None


def reversible(frozen=False):
    class Reversible(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
            self.blocks = nn.ModuleList(
                nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)) for _ in range(2)
            )
            self.scale = nn.Parameter(torch.ones(3), requires_grad=not frozen)

        def forward(self, x):
            return self.last(Coupled.apply(self.first(x), self.blocks, self.scale))

    return Reversible()


def reversible_blocks():
    model = reversible()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.5)
    return loop(model, lambda x, y: descend(F.cross_entropy(model(x), y), optimizer), optimizer)


def reversible_blocks_that_accumulate():
    """With a scale that no optimizer knows, and clipping."""
    model = reversible(frozen=True)
    model.scale = nn.Parameter(torch.full((3,), 0.5))
    optimizer = SGD([p for p in model.parameters() if p is not model.scale], 0.1)
    steps = 0

    def step(x, y):
        nonlocal steps
        loss = F.cross_entropy(model(x), y) / 2
        loss.backward()
        steps += 1
        if steps % 2 == 0:
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            model.zero_grad()
        return loss

    return loop(model, step, optimizer, batch_size=5)


# --- a Jacobian by hand, as torchjd has it ----------------------------------------------------------------------------


def jacobian_of(outputs, inputs, vectors):
    """Give the products of each vector, all at once."""
    return torch.vmap(lambda vector: torch.autograd.grad(outputs, inputs, vector, retain_graph=True))(vectors)


def by_jacobian(losses_of):
    """Train by the Jacobian of several losses of outputs and classes."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        losses = losses_of(model(x), y)
        found = jacobian_of(losses, list(model.parameters()), torch.eye(len(losses)))
        for parameter, its in zip(model.parameters(), found, strict=True):
            parameter.grad = its.mean(0) / (1 + its.std(0))
        optimizer.step()
        return losses.mean()

    return loop(model, step, optimizer)


def a_jacobian_of_losses_of_rows_by_vmap():
    return by_jacobian(lambda z, y: F.cross_entropy(z, y, reduction="none"))


def a_jacobian_of_two_losses_by_vmap():
    return by_jacobian(lambda z, y: torch.stack([F.cross_entropy(z, y), z.pow(2).mean()]))


def gradients_of_a_batch_by_vmap():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        x = x.clone().requires_grad_()
        (slopes,) = jacobian_of(model(x).sum(1), [x], torch.eye(len(x)))
        loss = F.cross_entropy(model(x + slopes.sum(0)), y)
        return descend(loss, optimizer)

    return loop(model, step, optimizer)


def jacobians_of_what_is_no_batch_by_vmap():
    weight = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    out = weight.pow(3).sum(1)

    def of(vector):
        return torch.autograd.grad(out, weight, vector, retain_graph=True)[0]

    scales = torch.tensor([1.0, 2.0])
    twice = torch.vmap(lambda scale: torch.vmap(lambda vector: of(vector * scale))(torch.eye(3)))(scales)
    rows = torch.vmap(
        lambda scale: torch.autograd.grad(out, weight, torch.eye(3) * scale, retain_graph=True, is_grads_batched=True)[
            0
        ]
    )(scales)
    return [*twice.flatten().tolist(), *rows.flatten().tolist()]


def sorted_by_the_names_of_numpy():
    said = []
    for x, _ in data(8):
        ordered, at = torch.sort(x[:, 1], axis=0)
        said += [
            *ordered.tolist(),
            *at.tolist(),
            *x.argsort(axis=0)[:, 0].tolist(),
            *x.topk(2, axis=0)[0][:, 1].tolist(),
        ]
        said += F.leaky_relu(x * 1.0, 0.1, 1)[:, 0].tolist() + F.celu(x * 1.0, inplace=1)[:, 0].tolist()
    return said
