"""Loops with autograd functions of the author's own, which batches reach in forwards that keep state, and outside."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import Clamped, descend, everything
from parity.habits import data, mlp
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint


class Spike(torch.autograd.Function):
    """A step whose gradient is that of an arc tangent, as spiking networks have it."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + (ctx.slope * x) ** 2), None


class Reversed(torch.autograd.Function):
    """Turns gradients around, as adversarial domain adaptation does."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.alpha * grad, None


class Rounded(torch.autograd.Function):
    """Rounds to a grid whose step is learned."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return torch.round(x / step) * step

    @staticmethod
    def backward(ctx, grad):
        x, step = ctx.saved_tensors
        return grad, (grad * (torch.round(x / step) - x / step)).sum().reshape(step.shape)


class Centred(torch.autograd.Function):
    """Looks at all rows."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(0)

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)


class CentredBehind(torch.autograd.Function):
    """Looks at all rows in its backward alone."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return 2 * (grad - grad.mean(0))


class Halves(torch.autograd.Function):
    """Gives two tensors, and what is no tensor."""

    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, 1)
        return a.clone(), b.tanh(), 3

    @staticmethod
    def backward(ctx, a, b, number):
        return torch.cat([a, b], 1)


class InPlace(torch.autograd.Function):
    """Writes to what it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x.mul_(0.5).tanh_())
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y**2) * 0.5


class Squared(torch.autograd.Function):
    """With both halves differentiable, and its context set apart."""

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Switched(torch.autograd.Function):
    """Looks at all rows once something outside says so."""

    looks = False

    @staticmethod
    def forward(ctx, x):
        ctx.looks = Switched.looks
        return x - x.mean(0) if ctx.looks else x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0) if ctx.looks else grad


SETTINGS = {"looks": False}


class Configured(torch.autograd.Function):
    """Looks at all rows once a dict outside says so, in its backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 1.5

    @staticmethod
    def backward(ctx, grad):
        return 1.5 * (grad - grad.mean(0)) if SETTINGS["looks"] else 1.5 * grad


class Branching(torch.autograd.Function):
    """Does another thing where a value of any row says so."""

    @staticmethod
    def forward(ctx, x):
        ctx.times = 2.0 if x.max() > 1.5 else 1.0
        return x * ctx.times

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.times


class Noisy(torch.autograd.Function):
    """Draws."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = (torch.rand_like(x) > 0.3).to(x.dtype)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class Counting(torch.autograd.Function):
    """Keeps a count of its calls and of the rows it saw."""

    calls = rows = 0

    @staticmethod
    def forward(ctx, x):
        Counting.calls += 1
        Counting.rows += len(x)
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad


def trained(apply, net=None, epochs=4, loss=F.cross_entropy, lr=0.1):
    """Apply a function between two halves of a net, outside of any module."""
    torch.manual_seed(0)
    first, second = net or (nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3))
    both = nn.ModuleList([first, second])
    optimizer = SGD(both.parameters(), lr)
    said = []
    for _ in range(epochs):
        for x, y in data(8):
            said.append(descend(loss(second(apply(first(x))), y), optimizer).item())
    return said + everything(both)


def spikes_in_a_loop():
    return trained(lambda x: Spike.apply(x, 2.0) + x)


def reverses_outside_of_modules():
    return trained(lambda x: Reversed.apply(x, 0.3))


def reverses_more_and_more():
    alphas = iter(torch.linspace(0, 1, 64).tolist())
    return trained(lambda x: Reversed.apply(x, next(alphas)))


def clamps_gradients():
    return trained(Clamped.apply)


def centres_rows():
    return trained(Centred.apply)


def centres_gradients():
    return trained(CentredBehind.apply)


def two_halves_and_a_number():
    def apply(x):
        a, b, number = Halves.apply(x)
        return torch.cat([a * number, b], 1)

    return trained(apply)


def writes_in_place():
    return trained(lambda x: InPlace.apply(x * 1.0))


def writes_to_what_is_read_again():
    def apply(x):
        y = x * 1.0
        z = InPlace.apply(y)
        return y + z

    return trained(apply)


def draws_in_a_function():
    return trained(Noisy.apply)


def branches_by_values():
    return trained(Branching.apply)


def switches_by_an_attribute_of_its_class():
    calls = []

    def apply(x):
        calls.append(0)
        Switched.looks = len(calls) > 9
        return Switched.apply(x)

    try:
        return trained(apply)
    finally:
        Switched.looks = False


def switches_by_a_dict_outside():
    calls = []

    def apply(x):
        calls.append(0)
        SETTINGS["looks"] = len(calls) > 9
        return Configured.apply(x)

    try:
        return trained(apply)
    finally:
        SETTINGS["looks"] = False


def counts_calls_and_rows():
    Counting.calls = Counting.rows = 0
    return [*trained(Counting.apply), float(Counting.calls), float(Counting.rows)]


def learned_step_outside_of_modules():
    torch.manual_seed(0)
    model, head, step = mlp(), nn.Linear(3, 3), nn.Parameter(torch.tensor(0.05))
    optimizer = SGD([*model.parameters(), *head.parameters(), step], 0.1)
    said = []
    for _ in range(4):
        for x, y in data(8):
            said.append(descend(F.cross_entropy(head(Rounded.apply(model(x), step)), y), optimizer).item())
    return [*said, step.item(), *everything(model), *everything(head)]


class Leaky(nn.Module):
    """Keeps its membrane's potential, as snntorch's layers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.out = nn.Linear(6, 3)
        self.step = nn.Parameter(torch.tensor(0.1))
        self.register_buffer("memory", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.memory = 0.9 * self.memory + self.layer(x)
        spikes = Spike.apply(self.memory - 0.5, 2.0)
        self.memory = self.memory - spikes.detach()
        return self.out(Rounded.apply(spikes + 0.1 * self.memory, self.step))


def keeps_a_potential():
    torch.manual_seed(0)
    model = Leaky()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(4):
        for x, y in data(8):
            model.memory = torch.zeros(1)
            outputs = [model(x * time) for time in (0.5, 1.0, 1.5)]
            said.append(descend(F.cross_entropy(sum(outputs), y), optimizer).item())
            said.append(model.memory.sum().item())
    return said + everything(model)


def keeps_a_potential_over_batches():
    torch.manual_seed(0)
    model = Leaky()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(4):
        for x, y in data(8):
            if len(x) < 8:
                continue
            model.memory = model.memory.detach()
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
    return [*said, model.memory.sum().item(), *everything(model)]


def penalty_on_gradients_through_a_function():
    torch.manual_seed(0)
    model, head = mlp(), nn.Linear(3, 3)
    optimizer = SGD([*model.parameters(), *head.parameters()], 0.1)
    said = []
    for _ in range(4):
        for x, y in data(8):
            x.requires_grad_(True)
            out = head(Squared.apply(model(x)))
            (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = F.cross_entropy(out, y) + grad.pow(2).mean()
            said.append(descend(loss, optimizer).item())
    return [*said, *everything(model), *everything(head)]


def checkpointed_function():
    return trained(lambda x: checkpoint(Spike.apply, x, 2.0, use_reentrant=False) + x)


def checkpointed_function_that_reenters():
    return trained(lambda x: checkpoint(Spike.apply, x, 2.0, use_reentrant=True) + x)


def evaluates_between_epochs():
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 3)
    both = nn.ModuleList([first, second])
    optimizer = SGD(both.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, y in data(8):
            said.append(descend(F.cross_entropy(second(Spike.apply(first(x), 1.0) + first(x)), y), optimizer).item())
        with torch.no_grad():
            for x, y in data(5):
                out = second(Spike.apply(first(x), 1.0) + first(x))
                said += [out.sum().item(), (out.argmax(1) == y).sum().item()]
    return said + everything(both)


def losses_per_row_by_a_function():
    return trained(lambda x: x, loss=lambda out, y: Squared.apply(out - F.one_hot(y, 3).to(out.dtype)).mean())


def sums_by_a_function():
    return trained(lambda x: x, loss=lambda out, y: Squared.apply(F.cross_entropy(out, y)))


def reads_gradients_of_what_it_gave():
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6), nn.Linear(6, 3)
    both = nn.ModuleList([first, second])
    optimizer = SGD(both.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, y in data(8):
            hidden = Spike.apply(first(x), 1.0) * first(x)
            hidden.retain_grad()
            said.append(descend(F.cross_entropy(second(hidden), y), optimizer).item())
            said.append(hidden.grad.norm().item())
    return said + everything(both)


class Nearest(torch.autograd.Function):
    """Numbers the nearest codes, as vector quantization does: no gradient comes to that."""

    @staticmethod
    def forward(ctx, x, codes):
        nearest = torch.cdist(x, codes).argmin(1)
        ctx.mark_non_differentiable(nearest)
        return nearest

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no gradient comes by")


class Quantized(torch.autograd.Function):
    """The same, with the codes themselves, whose gradients are those of their rows."""

    @staticmethod
    def forward(ctx, x, codes):
        distances = torch.addmm(codes.pow(2).sum(1) + x.pow(2).sum(1, keepdim=True), x, codes.t(), alpha=-2.0)
        nearest = distances.argmin(1)
        ctx.save_for_backward(nearest, codes)
        far = distances.amin(1)
        ctx.mark_non_differentiable(nearest, far)
        return codes.index_select(0, nearest), nearest, far

    @staticmethod
    def backward(ctx, grad, *others):
        nearest, codes = ctx.saved_tensors
        return grad.clone(), torch.zeros_like(codes).index_add_(0, nearest, grad)


class Quantizing(nn.Module):
    def __init__(self, quantize):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.codes = nn.Parameter(torch.randn(5, 6))
        self.quantize = quantize

    def forward(self, x):
        z = self.first(x)
        found = self.quantize(z, self.codes)
        return self.last(z + (found - z).detach()), (z.detach() - found).pow(2).mean(1)


def quantizes(quantize):
    torch.manual_seed(0)
    model = Quantizing(quantize)
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, y in data(8):
            out, far = model(x)
            said.append(descend(F.cross_entropy(out, y) + far.mean(), optimizer).item())
    return said + everything(model)


def codes_that_a_function_numbers():
    return quantizes(lambda z, codes: codes[Nearest.apply(z, codes)])


def codes_that_a_function_gives():
    return quantizes(lambda z, codes: Quantized.apply(z, codes)[0])


class Annealed(torch.autograd.Function):
    """Is given another number in each call."""

    joins_in = "neither"

    @classmethod
    def joined(cls, x, alpha, half):
        if cls.joins_in == half and alpha > 0.35:
            return x - x.mean(0)
        if cls.joins_in == f"{half}, by much" and math.exp(alpha) > 1.5:
            return x - x.mean(0)
        if cls.joins_in == f"{half}, from zero":
            return x + alpha * x.mean(0)
        if cls.joins_in == f"{half}, as an integer":
            return x.roll(int(alpha * 4), 0)
        return x * alpha

    @classmethod
    def make(cls, joins_in):
        """Give a class of its own, so that each is decided on anew."""

        class Own(cls):
            @staticmethod
            def forward(ctx, x, alpha, name="name"):
                ctx.alpha = alpha
                return Own.joined(x, alpha, "forward")

            @staticmethod
            def backward(ctx, grad):
                return Own.joined(grad, ctx.alpha, "backward") * (1 - 2 * ctx.alpha), None, None

        Own.joins_in = joins_in
        Own.__qualname__ = "Annealed"  # not of a function's, which may make another one in each call
        return Own


class Adapting(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.features, self.head, self.function = nn.Linear(4, 6), nn.Linear(6, 2), function

    def forward(self, x, alpha):
        return self.head(self.function.apply(torch.tanh(self.features(x)), alpha))


def annealed(joins_in, values=lambda i: i / 12):
    torch.manual_seed(1)
    model = Adapting(Annealed.make(joins_in))
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for i, (x, y) in enumerate(data(batch_size=6, n=72)):
        loss = F.cross_entropy(model(x, values(i)), y % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said + everything(model)


def a_factor_that_is_annealed():
    return annealed("neither")


def a_factor_that_is_annealed_from_below_zero():
    return annealed("neither", lambda i: (i - 6) / 3)


def a_factor_at_which_forward_looks():
    return annealed("forward")


def a_factor_at_which_backward_looks():
    return annealed("backward")


def a_factor_that_mathematics_looks_at():
    return annealed("forward, by much") + annealed("backward, by much")


def a_factor_that_joins_rows_from_zero():
    return annealed("forward, from zero") + annealed("backward, from zero")


def a_factor_that_becomes_an_integer():
    return annealed("forward, as an integer") + annealed("backward, as an integer")


class StraightThrough(torch.autograd.Function):
    """Takes the nearest code of each row, whose gradient is summed over rows if it is asked for."""

    @staticmethod
    def forward(ctx, x, codes):
        at = torch.cdist(x, codes).argmin(1)
        ctx.save_for_backward(at, codes)
        ctx.mark_non_differentiable(at)
        return codes.index_select(0, at), at

    @staticmethod
    def backward(ctx, grad, of_at):
        at, codes = ctx.saved_tensors
        of_codes = torch.zeros_like(codes).index_add_(0, at, grad) if ctx.needs_input_grad[1] else None
        return grad.clone(), of_codes


class Coded(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.codes = nn.Linear(4, 3), nn.Linear(3, 3), nn.Embedding(5, 3)
        self.trains_codes = False

    def forward(self, x):
        z, codes = self.encode(x), self.codes.weight
        q, at = StraightThrough.apply(z, codes if self.trains_codes else codes.detach())
        return self.decode(q), z, codes.index_select(0, at)


def codes_that_get_a_gradient_later():
    torch.manual_seed(1)
    model = Coded()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for epoch in range(3):
        model.trains_codes = epoch == 1
        model.codes.weight.requires_grad_(epoch < 2)
        for x, y in data():
            out, z, q = model(x)
            loss = F.cross_entropy(out, y) + F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said + everything(model)


class Looking(Annealed):
    joins_in = "neither"

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = float(alpha)
        return x * ctx.alpha

    @staticmethod
    def backward(ctx, grad):
        return ctx.alpha * grad, None


def checkpointed(function, values):
    torch.manual_seed(1)
    first, last = nn.Linear(4, 6), nn.Linear(6, 3)
    optimizer = SGD([*first.parameters(), *last.parameters()], 0.01)
    said = []
    for i, (x, y) in enumerate(data(batch_size=6, n=48)):
        hidden = checkpoint(lambda h, i=i: function.apply(h, values[i]).sin(), first(x), use_reentrant=False)
        loss = F.cross_entropy(last(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said + everything(first) + everything(last)


def a_function_in_a_checkpoint_whose_factor_changes():
    floats, numbers = [0.5, 0.75, 0.6, 0.9, 30.0, 31.0, 500.0, 2.0], [1, 2, 3, 4, 5, 1, 2, 3]
    return [
        number
        for function in (Reversed, Looking)
        for values in (floats, numbers)
        for number in checkpointed(function, values)
    ]


class LinearByHand(torch.autograd.Function):
    """As in the tutorial on extending torch: gradients of a weight and a bias are sums over the rows."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        into, of_weight, of_bias = grad.mm(weight), grad.t().mm(x), grad.sum(0)
        return KINDS_OF_SUMS[KIND[0]](grad, into, of_weight, of_bias)


KIND, FACTOR, NOTED, TOTAL = [""], [0.0], [], torch.zeros(6, dtype=torch.float64)
KINDS_OF_SUMS = {
    "sums": lambda grad, into, weight, bias: (into, weight, bias),
    "a sum that comes to the rows": lambda grad, into, weight, bias: (into - 0.01 * bias.mean(), weight, bias),
    "a sum that comes to the rows later": lambda grad, into, weight, bias: (
        into - FACTOR[0] * bias.mean(),
        weight,
        bias,
    ),
    "by a tensor that is zero": lambda grad, into, weight, bias: (into - SCALE * bias.mean(), weight, bias),
    "a sum that is clipped later": lambda grad, into, weight, bias: (into, weight, bias.clamp(-0.3, 0.3)),
    "a sum that is divided by its norm": lambda grad, into, weight, bias: (
        into,
        weight / weight.norm().clamp(min=2),
        bias,
    ),
    "a mean": lambda grad, into, weight, bias: (into, weight / len(grad), bias / grad.shape[0]),
    "a sum that is looked at": lambda grad, into, weight, bias: (into * (2 if bias.sum() > 0.2 else 1), weight, bias),
    "a sum that is compared": lambda grad, into, weight, bias: (into * (bias.abs().sum() < 0.5), weight, bias),
    "a sum that is kept": lambda grad, into, weight, bias: NOTED.append(bias) or (into, weight, bias),
    "a sum of all": lambda grad, into, weight, bias: TOTAL.add_(bias) is None or (into, weight, bias),
    "a sum of some": lambda grad, into, weight, bias: TOTAL[:4].add_(bias[:4]) is None or (into, weight, bias),
    "a sum in two steps": lambda grad, into, weight, bias: (into, weight, grad.cumsum(0)[-1]),
    "a sum of squares": lambda grad, into, weight, bias: (into, weight, (grad * 3).pow(2).sum(0)),
    "a square of a sum": lambda grad, into, weight, bias: (into, weight, grad.sum(0).pow(2)),
    "of zeros first, clipped by its norm": lambda grad, into, weight, bias: (
        into,
        weight * torch.clamp(0.1 / (weight.norm() + 1e-6), max=1.0),
        bias.clamp(-0.01, 0.01),
    ),
    "of zeros first, and a mean": lambda grad, into, weight, bias: (into, weight / grad.shape[0], grad.mean(0)),
    "a sum and a penalty": lambda grad, into, weight, bias: (into, weight + SCALE * torch.ones_like(weight), bias),
    "a sum whose norm is kept": lambda grad, into, weight, bias: (
        LATEST.update(norm=weight.norm()) or (into, weight, bias)
    ),
    "a sum that is kept by a function": lambda grad, into, weight, bias: (
        LATEST.update(norm=bias.view(2, 3)) or (into, weight, bias)
    ),
    "sums that are scaled and added": lambda grad, into, weight, bias: (
        into,
        (2 * weight + grad.t().mm(into[:, :6] * 0.5)) / 3,
        torch.stack([bias, -grad.sum(0)]).sum(0) * 0.25 + bias,
    ),
}
LATEST = {}
SCALE = torch.zeros((), dtype=torch.float64)


def gradients_that_are_sums_over_rows():
    said = []
    for kind in KINDS_OF_SUMS:
        torch.manual_seed(1)
        KIND[0], FACTOR[0] = kind, 0.0
        NOTED.clear()
        LATEST.clear()
        TOTAL.zero_()
        SCALE.zero_()
        first, last = nn.Linear(4, 6), nn.Linear(6, 3)
        if kind.startswith("of zeros first"):
            nn.init.zeros_(last.weight)
        model = ByHandInside(first, last)
        optimizer = SGD(model.parameters(), 0.1)
        for step, (x, y) in enumerate(data(batch_size=6, n=60)):
            FACTOR[0] = 0.05 * (step > 3)
            SCALE.fill_(0.05 * (step > 5))
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), *[kept.sum().item() for kept in LATEST.values()]]
        said += [*everything(model), *TOTAL.tolist(), *[one.sum().item() for one in NOTED]]
    return said


class ByHandInside(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last, self.weight = first, last, nn.Parameter(torch.eye(6, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(6, dtype=torch.float64))

    def forward(self, x):
        return self.last(LinearByHand.apply(self.first(x).tanh(), self.weight, self.bias))


class ScaledInForward(nn.Module):
    """Makes the class of its function in each call, which writes to a log in backward."""

    def __init__(self):
        super().__init__()
        self.scale, self.last, self.log = nn.Parameter(torch.ones(4, dtype=torch.float64)), nn.Linear(4, 3), []

    def forward(self, x):
        log = self.log

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.save_for_backward(x, scale)
                return x * scale

            @staticmethod
            def backward(ctx, grad):
                x, scale = ctx.saved_tensors
                log.append((grad * x).sum(0))
                return grad * scale, log[-1]

        return self.last(Scale.apply(x, self.scale))


def a_function_that_is_made_in_forward():
    torch.manual_seed(1)
    model = ScaledInForward()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in data(batch_size=6, n=30):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), len(model.log), *model.log[-1].tolist()]
    return said + everything(model)


class WritesToGlobal(torch.autograd.Function):
    """Gives a weight its gradient by itself, though nobody has given it that."""

    how = "grad"

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        own, its = grad.t() @ x, GLOBAL[0]
        if WritesToGlobal.how == "data":
            its.data -= 0.05 * own
        elif WritesToGlobal.how == "grad":
            its.grad = own if its.grad is None else its.grad + own
        else:
            its.seen = own.clone()
        return grad @ weight, own if WritesToGlobal.how == "seen" else None


GLOBAL = []


class ReachesGlobal(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.weight = nn.Parameter(torch.eye(6))

    def forward(self, x):
        return self.last(WritesToGlobal.apply(self.first(x), self.weight).tanh())


def functions_that_write_to_weights_which_they_are_not_given():
    said = []
    for how in ("grad", "data", "seen"):
        WritesToGlobal.how = how
        torch.manual_seed(1)
        model = ReachesGlobal()
        GLOBAL[:] = [model.weight]
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in data(batch_size=6, n=30):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            said += [loss.item(), float(how == "seen" and model.weight.seen.norm())]
        said += everything(model)
    return said


class ByHelpers(torch.autograd.Function):
    """Gives a weight that it comes to by helpers, classes and objects its gradient, or takes a step with it."""

    how, weight, held = "", None, None

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        ctx.reached = ByHelpers.weight
        return h @ ByHelpers.weight.detach()

    @staticmethod
    def backward(ctx, grad):
        (h,) = ctx.saved_tensors
        back, own = grad @ ByHelpers.weight.detach().t(), h.t() @ grad
        if ByHelpers.how == "by a helper":
            accumulate(ByHelpers.weight, own)
        elif ByHelpers.how == "by its context":
            accumulate(ctx.reached, own)
        elif ByHelpers.how == "by an object":
            accumulate(ByHelpers.held["of"][0].weight, own)
        elif ByHelpers.how == "in place":
            step(ByHelpers.weight, own)
        else:
            with torch.enable_grad():
                again = h.detach() @ ByHelpers.weight
                again.backward(grad)
        return back


def accumulate(weight, grad):
    weight.grad = grad if weight.grad is None else weight.grad + grad


@torch.no_grad()
def step(weight, grad):
    weight.sub_(grad, alpha=0.1)


class CallsHelpers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(ByHelpers.apply(self.first(x)).tanh())


def functions_that_come_to_weights_by_helpers():
    said = []
    for how in ("by a helper", "by its context", "by an object", "in place", "by a backward of its own"):
        torch.manual_seed(1)
        ByHelpers.how, ByHelpers.weight = how, nn.Parameter(0.3 * torch.randn(6, 6))
        ByHelpers.held = {"of": [argparse.Namespace(weight=ByHelpers.weight)]}
        model = CallsHelpers()
        optimizer = SGD([*model.parameters(), *([] if how == "in place" else [ByHelpers.weight])], 0.1)
        for x, y in data(batch_size=6, n=30):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            said += [loss.item(), ByHelpers.weight.sum().item()]
        said += everything(model)
    return said
