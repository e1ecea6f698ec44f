"""Forwards that keep rows apart when they are first seen, and tie them together when something elsewhere changes."""

import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import importlib
import itertools
import queue
import random
import sys
import threading
import types
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend
from parity.habits import data
from parity.later_habits import centred, fit
from torch.optim import SGD
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset


class CFG:
    mix = False


@dataclasses.dataclass(slots=True)
class Slots:
    mix: bool = False


FLAGS = {"mix": False}
MIX = False
METER = types.SimpleNamespace(seen=0)
LOG = []


class Layers(nn.Module):
    """Two layers and some attributes."""

    def __init__(self, **attributes):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        for name, value in attributes.items():
            setattr(self, name, value)


def of(asks, change, at=3, **attributes):
    """Train a net that centres its rows when ``asks(net)``; ``change(net)`` comes before the fourth step."""

    class Asking(Layers):
        flags, settings = {"mix": False}, types.SimpleNamespace(mix=False)

        def forward(self, x):
            z = torch.tanh(self.first(x))
            return self.last(centred(z) if asks(self) else z)

    return fit(Asking(**attributes), before=lambda net, step: change(net) if step == at else None)


def calling(body, **attributes):
    """Train a net whose rows go through ``body(net, z)``."""

    class Calling(Layers):
        def forward(self, x):
            return self.last(body(self, torch.tanh(self.first(x))))

    return Calling(**attributes)


# --- what the code reaches -------------------------------------------------------------------------------------------


def a_class_of_settings():
    CFG.mix = False
    return of(lambda net: CFG.mix, lambda net: setattr(CFG, "mix", True))


def a_dict_of_settings():
    FLAGS["mix"] = False
    said = of(lambda net: FLAGS["mix"], lambda net: FLAGS.update(mix=True))
    return said + of(lambda net: net.flags["mix"], lambda net: net.flags.update(mix=True))


def settings_inside_settings():
    nested = types.SimpleNamespace(mix=False, inner=types.SimpleNamespace(mix=False), flags={"mix": False})
    said = of(lambda net: net.cfg.inner.mix, lambda net: setattr(net.cfg.inner, "mix", True), cfg=nested)
    said += of(lambda net: net.cfg.flags["mix"], lambda net: net.cfg.flags.update(mix=True), cfg=nested)
    return said + of(lambda net: net.cfgs[0].mix, lambda net: setattr(net.cfgs[0], "mix", True), cfgs=[nested])


def settings_of_every_kind():
    said = of(lambda net: net.cfg.mix, lambda net: setattr(net.cfg, "mix", True), cfg=Slots())
    said += of(lambda net: net.on[0] > 0, lambda net: net.on.fill(1), on=np.zeros(2))
    said += of(lambda net: len(net.queue) > 0, lambda net: net.queue.append(1), queue=collections.deque())
    said += of(lambda net: next(net.count) > 3, lambda net: None, count=itertools.count())
    return said + of(lambda net: net.settings.mix, lambda net: setattr(net.settings, "mix", True))


class Level(enum.IntEnum):
    ROWS = 0
    MIX = 1


class Word(str, enum.Enum):
    ROWS = "rows"
    MIX = "mix"


def attributes_that_are_like_numbers():
    said = of(lambda net: net.level > 0, lambda net: setattr(net, "level", Level.MIX), level=Level.ROWS)
    said += of(lambda net: net.word == "mix", lambda net: setattr(net, "word", Word.MIX), word=Word.ROWS)
    said += of(lambda net: net.on > 0, lambda net: setattr(net, "on", np.float64(1)), on=np.float64(0))
    return said + of(lambda net: net.on[0] > 0, lambda net: net.on.extend(b"1") or net.on.pop(0), on=bytearray(1))


class Teacher(nn.Module):
    mix = False

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, z):
        return self.head(centred(z) if self.mix else z)


class Centres(nn.Module):
    def forward(self, z):
        return centred(z)


def modules_beside_the_model():
    model = calling(lambda net, z: net.teachers[0](z), teachers=[Teacher(nn.Tanh())])
    said = fit(model, before=lambda net, step: setattr(net.teachers[0], "mix", True) if step == 3 else None)
    model = calling(lambda net, z: net.teachers[0](z), teachers=[Teacher(nn.Tanh())])
    return said + fit(
        model, before=lambda net, step: setattr(net.teachers[0], "head", Centres()) if step == 3 else None
    )


def things_that_are_used_up():
    plan = [False] * 3 + [True] * 40
    said = of(lambda net: next(net.plan), lambda net: None, plan=iter(plan))
    said += of(lambda net: next(net.plan)[1], lambda net: None, plan=enumerate(plan))
    said += of(lambda net: next(net.plan)[0], lambda net: None, plan=zip(plan, plan, strict=True))
    said += of(lambda net: next(net.plan), lambda net: None, plan=map(bool, plan))
    return said + of(lambda net: net.event.is_set(), lambda net: net.event.set(), event=threading.Event())


class Meters(list):
    """Has a constructor of its own."""

    def __init__(self, first, second):
        super().__init__([first, second])
        LOG.append("made")


def functions_that_bring_new_names():
    settings = types.SimpleNamespace(mix=False, late=types.SimpleNamespace(other=False))
    state = {"ask": lambda net: net.cfg.mix}

    def before(net, step):
        if step == 2:
            state["ask"] = lambda net: net.cfg.late.other
        if step == 4:
            net.cfg.late.other = True

    model = calling(lambda net, z: centred(z) if state["ask"](net) else z, cfg=settings)
    said = fit(model, before=before)
    LOG.clear()
    said += of(lambda net: net.meters[0] > 0, lambda net: net.meters.reverse(), meters=Meters(0, 1))
    return [*said, len(LOG)]


def closures():
    state, act = {"mix": False}, lambda z: z

    def change(net):
        nonlocal act
        act = centred

    said = of(lambda net: state["mix"], lambda net: state.update(mix=True))
    model = calling(lambda net, z: act(z))
    return said + fit(model, before=lambda net, step: change(net) if step == 3 else None)


def functions_that_are_replaced():
    model = calling(lambda net, z: net.mix(z))
    kind = type(model)
    kind.mix = lambda self, z: z
    said = fit(model, before=lambda net, step: setattr(kind, "mix", lambda self, z: centred(z)) if step == 3 else None)
    settings = types.SimpleNamespace(act=lambda z: z)
    model = calling(lambda net, z: net.cfg.act(z), cfg=settings)
    return said + fit(model, before=lambda net, step: setattr(settings, "act", centred) if step == 3 else None)


def wrapped(function):
    @functools.wraps(function)
    def run(*args):
        return function(*args)

    return run


def globals_behind_decorators_and_properties():
    class Decorated(Layers):
        @property
        def on(self):
            return MIX

        @staticmethod
        def plain(z):
            return centred(z) if MIX else z

        @wrapped
        def forward(self, x):
            z = torch.tanh(self.first(x))
            return self.last(self.plain(centred(z * 2) if self.on else z))

    def before(net, step):
        globals()["MIX"] = step > 2

    return fit(Decorated(), before=before)


def _set_mix(on):
    globals()["MIX"] = on


def globals_by_other_ways():
    def by_import(net):
        from parity.branch_habits import MIX as mix

        return mix

    def by_another_name(net):
        import parity.branch_habits as habits

        return habits.MIX

    def late(net):
        try:
            return LATE
        except NameError:
            return False

    asks = [
        by_import,
        by_another_name,
        lambda net: sys.modules[__name__].MIX,
        lambda net: globals()["MIX"],
        lambda net: importlib.import_module("parity.branch_habits").MIX,
    ]
    said = []
    for ask in asks:
        _set_mix(False)
        said += of(ask, lambda net: _set_mix(True))
    _set_mix(False)
    globals().pop("LATE", None)
    return said + of(late, lambda net: globals().update(LATE=True))


@torch.no_grad()
def under_no_grad(net):
    return MIX


@contextlib.contextmanager
def as_context(net):
    yield MIX


@functools.singledispatch
def by_type(value):
    return False


@by_type.register
def _(value: int):
    return MIX


def globals_behind_the_decorators_of_packages():
    def in_context(net):
        with as_context(net) as on:
            return on

    said = []
    for ask in (under_no_grad, in_context, lambda net: by_type(3)):
        _set_mix(False)
        said += of(ask, lambda net: _set_mix(True))
    _set_mix(False)
    return said


class Pair(NamedTuple):
    first: int

    def mix(self):
        return MIX


class Defaults(dict):
    def __missing__(self, key):
        return MIX


class Meta(type):
    @property
    def mix(cls):
        return MIX


class Classed(metaclass=Meta):
    pass


class Asks(nn.Module):
    def forward(self, x):
        return x * MIX


PAIR, DEFAULTS, LAZY, LAYER = Pair(1), Defaults(), collections.defaultdict(lambda: MIX), Asks()
VARIABLE, OF_THREAD = contextvars.ContextVar("mix", default=False), threading.local()


def globals_in_classes_of_every_kind():
    asks = [
        lambda net: PAIR.mix(),
        lambda net: DEFAULTS["mix"],
        lambda net: LAZY.default_factory(),
        lambda net: Classed.mix,
        lambda net: LAYER(1),
    ]
    said = []
    for ask in asks:
        _set_mix(False)
        said += of(ask, lambda net: _set_mix(True))
    _set_mix(False)
    return said


def variables_of_contexts_and_threads():
    OF_THREAD.mix = False
    said = of(lambda net: OF_THREAD.mix, lambda net: setattr(OF_THREAD, "mix", True))
    return said + contextvars.copy_context().run(of, lambda net: VARIABLE.get(), lambda net: VARIABLE.set(True))


def defaults_and_arguments():
    state = {"mix": False}

    class Given(Layers):
        def forward(self, x, options=state, settings=None):
            z = torch.tanh(self.first(x))
            return self.last(centred(z) if options["mix"] or getattr(settings, "mix", False) else z)

    said = fit(Given(), before=lambda net, step: state.update(mix=step > 2))
    settings = types.SimpleNamespace(mix=False)
    state["mix"] = False
    return said + fit(
        Given(),
        lambda net, x, y: F.cross_entropy(net(x, settings=settings), y),
        lambda net, step: setattr(settings, "mix", step > 2),
    )


def tensors_that_appear():
    said = of(lambda net: net.centre is not None, lambda net: setattr(net, "centre", torch.ones(6)), centre=None)
    model = calling(lambda net, z: z if net.centre is None else centred(z) + net.centre)
    model.register_buffer("centre", None)
    return said + fit(model, before=lambda net, step: setattr(net, "centre", torch.ones(6)) if step == 3 else None)


def a_prompt_that_is_trained_later():
    model = calling(lambda net, z: z + net.prompt, prompt=torch.zeros(6))
    optimizer = SGD(model.parameters(), 0.3)
    rows, said = torch.randn(24, 4), []
    for step, (x, y) in enumerate(DataLoader(TensorDataset(rows, torch.arange(24) % 3), 8)):
        if step > 0:
            model.prompt.requires_grad_()
            model.prompt.grad = None
        said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
    return [*said, model.prompt.grad.pow(2).sum().item()]


# --- what values hide ------------------------------------------------------------------------------------------------


def gates_that_start_at_zero():
    def attention(net, z):
        return z + net.gamma * torch.einsum("ij,jd->id", torch.einsum("id,jd->ij", z, z).softmax(1), z)

    said = fit(calling(attention, gamma=nn.Parameter(torch.zeros(1))))
    said += fit(
        calling(lambda net, z: z + net.gamma * torch.cdist(z, z).sum(1, True), gamma=nn.Parameter(torch.zeros(1)))
    )
    return said + fit(calling(lambda net, z: z + net.gamma * z / len(z), gamma=nn.Parameter(torch.zeros(()))))


def functions_that_keep_rows_apart():
    return fit(calling(lambda net, z: torch.einsum("bi,bj->bij", z, z).sum(1) + torch.fft.rfft(z).real.sum(1, True)))


def functions_that_look_apart_to_the_first_rank():
    return fit(calling(lambda net, z: z + torch.cumulative_trapezoid(torch.cat([z, z[:1]]), dim=0)))


def outputs_that_are_masked_out():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return (self.linear(x) / len(x)).masked_fill(torch.tensor([False, False, True]), -1e9)

    return fit(Masked(), lambda net, x, y: F.cross_entropy(net(x), y % 2))


def whole_numbers_among_the_outputs():
    model = calling(lambda net, z: z)
    said = fit(model)
    other = calling(lambda net, z: z > torch.quantile(z, 0.5, dim=0))
    other.last = nn.Identity()
    x = torch.randn(9, 4)
    for rows, _ in DataLoader(TensorDataset(x, x), 4):
        with torch.no_grad():
            said.append((other(rows) * torch.arange(len(rows))[:, None]).sum().item())
    return said


def counts_of_rows():
    def some(net, z):
        return centred(z) if len(torch.nonzero(z[:, 0] > 0.6)) > 1 else z

    said = fit(calling(some))
    said += fit(calling(lambda net, z: z * len(torch.unique(z[:, 0] > 0))))
    return said + fit(calling(lambda net, z: centred(z) if torch.masked_select(z, z > 0.9).numel() else z))


def gradients_that_know_the_size():
    def quantised(net, z):
        scale = net.scale * z.numel() ** -0.5
        scale = (net.scale - scale).detach() + scale
        return ((z / scale).round() - z / scale).detach() * scale + z

    return fit(calling(quantised, scale=nn.Parameter(torch.tensor(0.3))))


def last_batches():
    said = fit(calling(lambda net, z: z * 2 if len(z) < 7 else z))
    return said + fit(calling(lambda net, z: centred(z) if len(z) == 6 else z))


def lengths_that_are_as_large_as_a_share():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 3)

        def forward(self, x):
            z = self.linear(x)
            return (centred(z) if x.size(1) > 4 else z).mean(1)

    model = Steps()
    optimizer, said = SGD(model.parameters(), 0.3), []
    for rows, length in ((8, 4), (8, 4), (10, 5), (12, 6)):
        loader = DataLoader(TensorDataset(torch.randn(rows, length, 1), torch.arange(rows) % 3), rows)
        said += [descend(F.cross_entropy(model(x), y), optimizer).item() for x, y in loader]
    return said


def branches_that_are_drawn():
    def drawn(net, z):
        return (net.one if random.random() < 0.5 else net.other)(z)

    return fit(calling(drawn, one=nn.BatchNorm1d(6), other=nn.BatchNorm1d(6)))


def a_layer_that_a_weight_chooses():
    class Centred(nn.Module):
        def forward(self, z):
            return centred(z)

    model = calling(
        lambda net, z: net.ways[net.alpha.argmax()](z) * net.alpha.softmax(0).max(),
        ways=nn.ModuleList([nn.Identity(), Centred()]),
        alpha=nn.Parameter(torch.tensor([1.0, 0.0])),
    )

    def before(net, step):
        if step == 3:
            with torch.no_grad():
                net.alpha.copy_(torch.tensor([0.0, 1.0]))

    return fit(model, before=before)


# --- what a forward does beside ---------------------------------------------------------------------------------------


def meters_and_logs():
    def metered(net, z):
        METER.seen += len(z)
        LOG.append(z.shape[0])
        return z

    METER.seen = 0
    LOG.clear()
    return [*fit(calling(metered)), METER.seen, *LOG]


def objects_among_the_outputs():
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x), types.SimpleNamespace(count=len(x)), {len(x)}, np.int64(len(x))

    def loss(net, x, y):
        out, told, sizes, count = net(x)
        return F.cross_entropy(out, y) * (told.count + sum(sizes) + int(count))

    return fit(Told(), loss)


def arguments_that_are_written_to():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x):
            x.clamp_(min=0)
            return self.linear(x.clone())

    model = Writing()
    optimizer, said = SGD(model.parameters(), 0.3), []
    for _ in range(4):
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), x[:, :3])
        said += [descend(loss, optimizer).item(), x.sum().item()]
    return said


def numbers_that_torch_reads_by_itself():
    def loss(net, x, y):
        out = net(x)
        loss = F.cross_entropy(out, y)
        with torch.no_grad():
            other = F.mse_loss(out, F.one_hot(y, 3).to(out.dtype))
            count = (y > 0).sum()
        told = torch.tensor(loss).sum() + torch.full((2,), other).sum() + torch.arange(count).sum()
        return loss * told.item() + torch.randperm(count).sum() + torch.topk(torch.arange(9.0), count).values.sum()

    return fit(calling(lambda net, z: z), loss)


# --- functions of the author's own -----------------------------------------------------------------------------------


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, count, *args):
        ctx.run, ctx.inputs, ctx.weights = run, list(args[:count]), list(args[count:])
        with torch.no_grad():
            return run(*args[:count])

    @staticmethod
    def backward(ctx, *grads):
        inputs = [leaf.detach().requires_grad_() for leaf in ctx.inputs]
        with torch.enable_grad():
            out = ctx.run(*[leaf.view_as(leaf) for leaf in inputs])
        return None, None, *torch.autograd.grad(out, inputs + ctx.weights, grads, allow_unused=True)


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), norm

    def run(self, z):
        return z + torch.tanh(self.norm(self.linear(z)))

    def forward(self, z):
        return Recomputed.apply(self.run, 1, z, *self.parameters())


def checkpoints_by_hand():
    said = fit(calling(lambda net, z: net.block(z), block=Block(nn.Identity())))
    said += fit(calling(lambda net, z: net.block(centred(z)), block=Block(nn.Identity())))
    return said + fit(calling(lambda net, z: net.block(z), block=Block(nn.BatchNorm1d(6))))


class AuxiliaryLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, loss):
        ctx.wanted = loss.requires_grad
        return z

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones(()) if ctx.wanted else None


def losses_that_come_in_backward():
    said = fit(calling(lambda net, z: AuxiliaryLoss.apply(z, 0.1 * F.mse_loss(z, torch.zeros_like(z)))))
    return said + fit(calling(lambda net, z: AuxiliaryLoss.apply(z, 0.1 * net.last.weight.pow(2).sum())))


def weights_that_are_adapted_first():
    class Adapting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, y):
            weight = self.linear.weight * 1.0
            loss = F.cross_entropy(F.linear(x, weight, self.linear.bias), y)
            (slope,) = torch.autograd.grad(loss, weight, retain_graph=True)
            return F.cross_entropy(F.linear(x, weight - 0.1 * slope, self.linear.bias), y)

    def asked(net, x, y):
        weight = net.linear.weight * 2.0
        loss = F.cross_entropy(F.linear(x, weight), y)
        (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
        return loss + slope.pow(2).sum()

    return fit(Adapting(), lambda net, x, y: net(x, y)) + fit(Adapting(), asked)


def scripted_layers():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, z):
            return torch.tanh(self.linear(z))

    prompt = torch.zeros(6, requires_grad=True)
    said = fit(calling(lambda net, z: net.inner(z) + net.gate * z.mean(0), inner=torch.jit.script(Inner()), gate=0.0))
    said += fit(calling(lambda net, z: net.inner(z) + prompt, inner=torch.jit.script(Inner())))
    return [*said, prompt.grad.pow(2).sum().item()]


class Padded(nn.Module):
    """An encoder of texts of 2 to 4 of 5 words, padded at their end, at their start, or both."""

    def __init__(self, padded=lambda x, at_end: at_end, layer=nn.TransformerEncoderLayer, batch_first=True, **kwargs):
        super().__init__()
        layer = layer(4, 2, 8, dropout=0.0, batch_first=batch_first)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, **kwargs), nn.Linear(4, 3)
        self.padded, self.batch_first = padded, batch_first

    def forward(self, x):
        padded = self.padded(x, torch.arange(5) >= (2 + (x[:, :1] > 0) + (x[:, 1:2] > 0)))
        words = x[:, None] * torch.arange(1.0, 6.0)[:, None]
        return self.encoder(words if self.batch_first else words.transpose(0, 1), src_key_padding_mask=padded)


class Layer(nn.TransformerEncoderLayer):
    """Somebody's own."""


def encoded(model, rows=20, mode=contextlib.nullcontext):
    said = fit(model, lambda net, x, y: F.cross_entropy(net.head(net(x).mean(int(net.batch_first))), y))
    model.eval()
    with torch.no_grad(), mode():
        for (x,) in DataLoader(TensorDataset(torch.randn(rows, 4)), 8):
            for _ in range(2):
                out = model(x)
                said += [out.pow(2).sum().item(), *(out == 0).double().mean(2).flatten().tolist()]
    return said


def encoders_that_leave_out_padding():
    return encoded(Padded()) + encoded(Padded(), 17) + encoded(Padded(batch_first=False))


def encoders_of_texts_that_are_padded_at_their_start():
    some = Padded(lambda x, at_end: torch.where(x[:, 2:3] > 1, at_end.flip(1), at_end))
    return encoded(Padded(lambda x, at_end: at_end.flip(1))) + encoded(some)


def encoders_that_do_not_look_at_their_masks():
    return encoded(Padded(mask_check=False)) + encoded(Padded(enable_nested_tensor=False))


def encoders_of_layers_that_somebody_wrote():
    hooked = Padded()
    hooked.encoder.layers[1].register_forward_hook(lambda module, args, out: None)
    return encoded(Padded(layer=Layer)) + encoded(hooked)


class Passes(TorchFunctionMode):
    """Hears of every function, with which torch leaves out nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def encoders_below_a_mode():
    return encoded(Padded(), mode=Passes)


HELD = {"weight": torch.ones(3), "bank": torch.ones(2)}


def _reduced(losses, kind="mean"):
    return losses.mean() if kind == "mean" and not getattr(_reduced, "sums", False) else losses.sum() * 0.1


class Reduces(Layers):
    """Computes its loss, by what stands elsewhere."""

    def __init__(self, reduce):
        super().__init__()
        self.criterion, self.reduce = nn.CrossEntropyLoss(), reduce

    def forward(self, x, y):
        return self.reduce(self, self.last(self.first(x).tanh()), y)


def _by_row(out, y):
    return F.cross_entropy(out, y, reduction="none")


# How a loss is computed, and what changes that in the middle of training.
CHANGES = {
    "a weight that is given later": (
        lambda model, out, y: model.criterion(out, y),
        lambda model: setattr(model.criterion, "weight", torch.tensor([1.0, 2.0, 3.0])),
    ),
    "a default": (
        lambda model, out, y: _reduced(_by_row(out, y)),
        lambda model: setattr(_reduced, "__defaults__", ("sum",)),
    ),
    "an attribute of a function": (
        lambda model, out, y: _reduced(_by_row(out, y)),
        lambda model: setattr(_reduced, "sums", True),
    ),
    "dimensions": (
        lambda model, out, y: (
            F.cross_entropy(out, y) if HELD["weight"].dim() == 1 else F.mse_loss(out, 0 * out.detach())
        ),
        lambda model: HELD.update(weight=torch.ones(3, 3)),
    ),
    "a type": (
        lambda model, out, y: _by_row(out, y).mean() if HELD["bank"].dtype.itemsize > 2 else _by_row(out, y).sum() / 9,
        lambda model: HELD.update(bank=torch.ones(2).half()),
    ),
}


def losses_whose_reduction_changes():
    said = []
    for reduce, change in CHANGES.values():
        torch.manual_seed(2)
        model = Reduces(reduce)
        optimizer = SGD(model.parameters(), 0.1)
        x, y = torch.randn(32, 4), torch.arange(32) % 3
        for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 8)):
            if step == 2:
                change(model)
            said.append(descend(model(a, b), optimizer).item())
        _reduced.__defaults__, HELD["weight"], HELD["bank"] = ("mean",), torch.ones(3), torch.ones(2)
        vars(_reduced).clear()
    return said


class ByItsOwnDraws(nn.Module):
    def __init__(self, drawn):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.drawn = drawn

    def forward(self, x):
        z = self.first(x)
        if self.drawn() < 0.3:
            z = z - z.mean(0)
        return self.last(z)


def own_draws(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for _ in range(3):
        for x, y in data():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said


def a_generator_of_python():
    model = ByItsOwnDraws(None)
    model.rng = random.Random(3)
    model.drawn = lambda: model.rng.random()
    return own_draws(model)


def a_generator_of_numpy():
    model = ByItsOwnDraws(None)
    model.rng = np.random.default_rng(2)
    model.drawn = lambda: model.rng.random()
    return own_draws(model)


def an_old_generator_of_numpy():
    model = ByItsOwnDraws(None)
    model.rng = np.random.RandomState(2)
    model.drawn = model.rng.rand
    return own_draws(model)


def a_generator_of_torch():
    model = ByItsOwnDraws(None)
    generator = torch.Generator().manual_seed(4)
    model.drawn = lambda: torch.rand((), generator=generator).item()
    return own_draws(model)


def a_generator_of_the_script():
    mine = random.Random(3)
    said = own_draws(ByItsOwnDraws(mine.random))
    return [*said, mine.random()]


def a_generator_that_is_held():
    """And drawn from in no call: its model runs on rows."""
    model = ByItsOwnDraws(lambda: 1.0)
    model.generator = torch.Generator().manual_seed(1)
    return own_draws(model)


def a_queue():
    model, waiting = ByItsOwnDraws(None), queue.Queue()
    for number in range(40):
        waiting.put((number % 7) / 7 + 0.2)
    model.drawn = waiting.get
    return own_draws(model)


class ByVmap(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x, scale):
        self.calls += 1
        return torch.func.vmap(self.layer)(x) * scale


def a_number_beside_what_needs_the_whole():
    model = ByVmap()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for step, (x, y) in enumerate(data()):
        loss = F.cross_entropy(model(x, 1 / (1 + step)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), model.calls]
    return said


def a_batch_that_is_too_small_first():
    """The script goes on after torch's error."""
    model = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3))
    said = []
    try:
        model(torch.randn(8, 3))
    except RuntimeError:
        said.append(1.0)
    return said + own_draws(model)
