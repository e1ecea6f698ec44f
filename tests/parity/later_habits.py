"""Models whose rows look independent in their first call and are not, or not for good."""

import collections
import dataclasses
import enum
import functools
import operator
import types

import numpy as np
import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything, loop
from parity.habits import data, mlp
from torch.optim import SGD


def fit(model, loss=None, before=None, **options):
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.3, momentum=0.9)
    steps = iter(range(1000))
    loss = loss or (lambda model, x, y: F.cross_entropy(model(x), y))

    def step(x, y):
        if before is not None:
            before(model, next(steps))
        return descend(loss(model, x, y), optimizer)

    return loop(model, step, optimizer, **options)


class Net(nn.Module):
    """Two layers; ``mix`` is called between them."""

    def __init__(self, mix=None):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.weight, self.mode, self.step = 0.0, "rows", 0
        if mix is not None:
            self.mix = mix

    def forward(self, x, *args, **kwargs):
        z = torch.tanh(self.first(x))
        return self.last(self.mix(self, z, *args, **kwargs))

    @staticmethod
    def mix(net, z):
        return z


def spread_of(z):
    return z.std(0).mean().expand(len(z), 1)


def centred(z):
    return z - z.mean(0)


# --- the first values hide it -----------------------------------------------------------------------------------------


def a_head_that_starts_at_zero():
    model = Net(lambda net, z: centred(z) / (z.std(0) + 1))
    nn.init.zeros_(model.last.weight)
    nn.init.zeros_(model.last.bias)
    return fit(model)


def a_penalty_with_weight_zero_at_first():
    class Vae(Net):
        def forward(self, x):
            z = self.first(x)
            return self.last(torch.tanh(z)), self.weight * (z.pow(2).sum(1).mean() - 1)

    def loss(model, x, y):
        out, penalty = model(x)
        again = penalty.item() > 0.05  # looked at, and branched on
        return F.cross_entropy(out, y) + penalty * (2 if again else 1)

    return fit(Vae(), loss, lambda model, step: setattr(model, "weight", 0.1 * step))


def minibatch_statistics_faded_in():
    class Critic(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            return (1 - self.weight) * self.last(z) + self.weight * self.last(z + spread_of(z))

    return fit(Critic(), before=lambda model, step: setattr(model, "weight", min(1.0, 0.3 * step)))


def a_router_that_starts_at_zero():
    class Experts(Net):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(6, 2, bias=False)
            nn.init.zeros_(self.router.weight)

        def forward(self, x):
            z = torch.tanh(self.first(x))
            share = self.router(z).softmax(1)
            return self.last(z) * share[:, :1], (share.mean(0) ** 2).sum()

    def loss(model, x, y):
        out, balance = model(x)
        return F.cross_entropy(out, y) + balance

    return fit(Experts(), loss)


def masked_logits():
    class Masked(Net):
        def forward(self, x):
            out = centred(self.last(self.first(x)))
            return out.masked_fill(torch.tensor([False, False, True]), -float("inf"))

    return fit(Masked(), lambda model, x, y: F.cross_entropy(model(x), y.clamp(max=1)))


def a_rank_among_the_batch():
    class Ranker(Net):
        def forward(self, x):
            out = self.last(self.first(x))
            return out if self.training else out[:, 0].argsort()

    model = Ranker()
    said = fit(model, epochs=1)
    model.eval()
    return said + [float(v) for x, _ in data(8) for v in model(x).tolist()]


# --- another form of call ---------------------------------------------------------------------------------------------


def a_keyword_that_mixes():
    def mix(net, z, mode="rows"):
        return centred(z) if mode == "batch" else z

    rank_zero = iter([None, "batch", "rows"] * 4)

    def loss(model, x, y):
        mode = next(rank_zero)
        return F.cross_entropy(model(x) if mode is None else model(x, mode=mode), y)

    return fit(Net(mix), loss)


def labels_only_sometimes():
    class Tuned(Net):
        def forward(self, x, labels=None):
            out = super().forward(x)
            return out if labels is None else (F.cross_entropy(out, labels), out)

    rank_zero = iter(range(100))

    def loss(model, x, y):
        if next(rank_zero) % 2:
            return model(x, labels=y)[0]
        return F.cross_entropy(model(x), y)

    return fit(Tuned(), loss)


def a_step_counter():
    def mix(net, z):
        net.step += 1
        return centred(z) if net.step > 2 else z

    return fit(Net(mix))


def a_flag_set_from_outside():
    def mix(net, z):
        return centred(z) if net.mode == "batch" else z

    return fit(Net(mix), before=lambda model, step: setattr(model, "mode", "batch" if step > 2 else "rows"))


def a_part_taken_out_of_eval():
    class Whitening(nn.Module):
        def forward(self, z):
            return centred(z) if self.training else z

    model = nn.Sequential(nn.Linear(4, 6), Whitening(), nn.Linear(6, 3))
    model[1].eval()
    return fit(model, before=lambda model, step: model[1].train(step > 2))


def a_layer_replaced():
    class Whitening(nn.Module):
        def forward(self, z):
            return centred(z)

    def before(model, step):
        if step == 3:
            model[1] = Whitening()

    return fit(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), before=before)


def a_forward_replaced():
    def before(model, step):
        if step == 3:
            model.forward = lambda x: model.last(centred(model.first(x)))

    return fit(Net(), before=before)


def a_temperature_set_before_every_call():
    def before(model, step):
        model.weight = 1 / (1 + step)

    return fit(Net(lambda net, z: z * net.weight + (centred(z) if net.weight < 0.1 else 0)), before=before, epochs=8)


class Kind(enum.Enum):
    ROWS = 1
    BATCH = 2


SETTINGS = {"batch": False}
LIMIT = [4]


def settings_changed_in_place():
    """In a dict, a list, a configuration object and its class, numpy's numbers, closures and global variables."""
    said = []
    for settle in (
        (lambda net: net.cfg.update(mix=True), lambda net: net.cfg.get("mix")),
        (lambda net: net.names.append("mix"), lambda net: "mix" in net.names),
        (lambda net: setattr(net.args, "mix", True), lambda net: net.args.mix),
        (lambda net: setattr(type(net), "mixes", True), lambda net: net.mixes),
        (lambda net: setattr(net, "flag", np.bool_(True)), lambda net: bool(net.flag)),
        (
            lambda net: setattr(net, "_hidden", lambda z: centred(z)),
            lambda net: net._hidden(torch.ones(2, 1)).sum() == 0,
        ),
    ):
        change, mixes = settle

        class Settled(Net):
            mixes = False

            def __init__(self, asks):
                super().__init__()
                self.cfg, self.names, self.args = {}, ["rows"], types.SimpleNamespace(mix=False)
                self.flag, self._hidden, self.asks = np.bool_(False), lambda z: z, asks

            def forward(self, x):
                z = torch.tanh(self.first(x))
                return self.last(centred(z) if self.asks(self) else z)

        said += fit(Settled(mixes), before=lambda net, step, change=change: change(net) if step == 3 else None)
    return said


class Part(nn.Module):
    def __init__(self, owner):
        super().__init__()
        self.owner = [owner]  # no layer of this one

    def forward(self, z):
        return centred(z) if self.owner[0].stage else z


class Helper:
    def __init__(self, net):
        self.mixes = net.stage > 0

    def put(self, z):
        return centred(z) if self.mixes else z


def staged(function):
    return lambda net, z: centred(function(net, z)) if getattr(net, "stage", 0) else function(net, z)


class Staged(Net):
    """A number that the script sets, and that a forward comes to in many ways."""

    def __init__(self, way):
        super().__init__()
        self.stage, self.seen, self.way = 0, 0, way
        self.put, self.part, self.held = (
            self.put_by_stage,
            Part(self),
            {"put": functools.partial(Staged.put_by_stage, self)},
        )
        self.made = lambda z: centred(z) if self.stage else z

    def put_by_stage(self, z):
        return centred(z) if self.stage else z

    @property
    def is_mixing(self):
        return self.stage == 1

    @staged
    def decorated(self, z):
        return z

    def count(self):
        return [self.seen, self.stage]  # which no forward calls

    def forward(self, x):
        z = torch.tanh(self.first(x))
        return self.last(self.way(self, z))


STAGED = {
    "a method in an attribute": lambda net, z: net.put(z),
    "in a partial": lambda net, z: net.held["put"](z),
    "a function made at first": lambda net, z: net.made(z),
    "another module": lambda net, z: net.part(z),
    "a property": lambda net, z: centred(z) if net.is_mixing else z,
    "by a text": lambda net, z: centred(z) if getattr(net, "sta" + "ge") else z,
    "by a literal": lambda net, z: centred(z) if operator.attrgetter("stage")(net) else z,
    "in its dictionary": lambda net, z: centred(z) if net.__dict__["stage"] else z,
    "an object that is made": lambda net, z: Helper(net).put(z),
    "a decorator": lambda net, z: net.decorated(z),
    "nowhere": lambda net, z: z,
}


def numbers_that_the_script_sets():
    def set_stage(net, step):
        net.seen += 8
        net.stage = int(step in (3, 4, 7))

    return [loss for way in STAGED.values() for loss in fit(Staged(way), before=set_stage)]


def settings_outside_the_model():
    mixing = False

    class Reading(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            return self.last(centred(z) if SETTINGS["batch"] or mixing else z)

    def before(model, step):
        nonlocal mixing
        SETTINGS["batch"] = step == 3
        mixing = step == 5

    said = fit(Reading(), before=before)
    SETTINGS["batch"] = False
    return said


def arguments_of_every_kind():
    def mix(net, z, how=Kind.ROWS, dim=-1, call=None, flag=np.bool_(False)):
        mixes = how is Kind.BATCH or dim == -2 or (call is not None and call(1) == 2) or flag
        return centred(z) if mixes else z

    rank_zero = iter(
        [
            {},
            {"how": Kind.ROWS},
            {"how": Kind.BATCH},
            {"dim": -1},
            {"dim": -2},
            {"call": abs},
            {"call": lambda x: 2 * x},
        ]
        + [{"flag": np.bool_(False)}, {"flag": np.bool_(True)}, {}] * 2
    )
    return fit(Net(mix), lambda model, x, y: F.cross_entropy(model(x, **next(rank_zero, {})), y), epochs=5)


def a_mixing_that_begins_with_wider_batches():
    model = Net(lambda net, z: z)
    model.first = nn.Linear(1, 6)
    model.forward = lambda x: model.last(
        centred(torch.tanh(model.first(x).mean(1))) if x.shape[1] > LIMIT[0] else torch.tanh(model.first(x).mean(1))
    )
    widths = iter([3, 4, 3, 5, 4, 5, 3] * 4)

    def loss(model, x, y):
        return F.cross_entropy(model(torch.cat([x, x], 1)[:, : next(widths), None]), y)

    return fit(model, loss, epochs=3)


def a_first_call_that_fails():
    class Warm(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
            self.calls, self.sizes = 0, []

        def forward(self, x):
            self.calls += 1
            self.sizes.append(x.shape[0])
            z = self.net(x)
            if self.calls == 1:
                raise ValueError("warm up")
            return z

    model = Warm()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        try:
            return descend(F.cross_entropy(model(x), y), optimizer)
        except ValueError:
            return 0.0

    return [*loop(model, step, optimizer), *map(float, model.sizes)]


def a_meter_on_the_model():
    class Metered(Net):
        def __init__(self):
            super().__init__()
            self.meter = types.SimpleNamespace(rows=0)

        def forward(self, x):
            self.meter.rows += x.size(0)
            return super().forward(x)

    model = Metered()
    return [*fit(model), float(model.meter.rows)]


# --- past the arguments and the parameters ----------------------------------------------------------------------------


def a_prompt_from_outside():
    prompt = nn.Parameter(torch.linspace(-1, 1, 6))
    model = Net(lambda net, z, prompt: z + prompt)
    optimizer = SGD([*model.parameters(), prompt], 0.3)
    said = loop(model, lambda x, y: descend(F.cross_entropy(model(x, prompt), y), optimizer), optimizer)
    return [*said, *prompt.tolist(), *prompt.grad.tolist()]


def weights_made_by_another_net():
    hyper, start = nn.Linear(2, 6), torch.tensor([0.3, -0.4])
    model = Net(lambda net, z, scale: z * scale)
    optimizer = SGD([*model.parameters(), *hyper.parameters()], 0.3)
    said = loop(model, lambda x, y: descend(F.cross_entropy(model(x, hyper(start)), y), optimizer), optimizer)
    return said + everything(hyper)


def trained_tensors_that_are_no_parameters():
    class Loose(Net):
        def __init__(self):
            super().__init__()
            self.layers = [(nn.Linear(6, 6),)]
            self.temperature = torch.tensor(0.5, requires_grad=True)

        def forward(self, x):
            return self.last(self.layers[0][0](torch.tanh(self.first(x)))) * self.temperature

    model = Loose()
    own = [model.temperature, *model.layers[0][0].parameters()]
    optimizer = SGD([*model.parameters(), *own], 0.3)
    said = loop(model, lambda x, y: descend(F.cross_entropy(model(x), y), optimizer), optimizer)
    return said + [tensor.sum().item() for tensor in own]


def values_kept_elsewhere():
    kept, meter = collections.deque(maxlen=3), types.SimpleNamespace(total=0.0, count=0)

    class Keeping(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            kept.append(z)
            meter.total += z.detach().mean().item()
            meter.count += len(z)
            return self.last(z)

    def loss(model, x, y):
        return F.cross_entropy(model(x), y) + kept[-1].pow(2).mean()

    return [*fit(Keeping(), loss), meter.total, float(meter.count)]


def a_branch_on_a_numpy_value():
    return fit(Net(lambda net, z: z * 2 if z.detach().numpy().max() > 0.9 else z))


def a_batch_seen_by_the_gradient_only():
    class Auxiliary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, loss):
            ctx.shape = loss.shape
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad, grad.new_ones(ctx.shape)

    def mix(net, z):
        mean = z.mean(0)
        return Auxiliary.apply(z + (mean - mean.detach()), z.pow(2).mean())

    return fit(Net(mix))


# --- autograd functions of the author's own ---------------------------------------------------------------------------


class Swish(torch.autograd.Function):
    """Keeps rows apart, as many scripts have it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class NormedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()


class MeanGradient(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.n = inputs[0].shape[0]

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.n


class ClampedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


def functions_that_keep_rows_apart():
    return fit(Net(lambda net, z: Swish.apply(z)))


def functions_whose_backward_looks_at_the_batch():
    return fit(Net(lambda net, z: NormedGradient.apply(z))) + fit(Net(lambda net, z: MeanGradient.apply(z)))


def a_clamped_gradient_and_ignored_targets():
    def loss(model, x, y):
        return F.cross_entropy(model(x), torch.where(x[:, 0] > 0, y, -100))

    return fit(Net(lambda net, z: ClampedGradient.apply(z)), loss)


# --- on batches --------------------------------------------------------------------------------------------------------


def data_written_before_backward():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        z = torch.tanh(model(x))
        loss = F.cross_entropy(z, y)
        z.data.clamp_(-0.1, 0.1)
        return descend(loss + z.sum() * 0, optimizer) + z.detach().abs().sum()

    return loop(model, step, optimizer)


def comparisons_with_what_is_no_tensor():
    def loss(model, x, y):
        assert (x == None, x != None, x == "x", None in [y]) == (False, True, False, False)  # noqa: E711
        return F.cross_entropy(model(x), y)

    return fit(Net(lambda net, z: z if z == None else z * 2), loss)  # noqa: E711


# --- outside of the module ---------------------------------------------------------------------------------------------


def grids_kept_by_shape():
    kept = {}

    def mix(net, z):
        shape = str(z.shape)
        if shape not in kept:
            kept[shape] = torch.linspace(-1, 1, z.shape[1]).repeat(z.shape[0], 1)
        return z + kept[shape]

    return fit(Net(mix), epochs=4)


class Decayed(nn.Linear):
    """Halves its weight in every forward."""

    def forward(self, x):
        self.weight.data = self.weight.data * 0.5
        return super().forward(x)


def weights_that_a_forward_replaces():
    model = nn.Sequential(Decayed(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return fit(model, epochs=1)


BANK = {"bank": torch.zeros(0, 6)}


def a_bank_that_is_filled_later():
    def mix(net, z):
        return z - torch.cat([BANK["bank"], z]).mean(0) if len(BANK["bank"]) else z

    def before(model, step):
        BANK["bank"] = torch.ones(4 if step > 2 else 0, 6)

    return fit(Net(mix), before=before)


def a_range_that_grows():
    def mix(net, z):
        for _ in net.weight:
            z = centred(z)
        return z

    def before(model, step):
        model.weight = range(step // 3)

    return fit(Net(mix), before=before)


def a_buffer_that_is_registered_later():
    model = Net(lambda net, z: z if net.centre is None else centred(z) + net.centre)
    model.register_buffer("centre", None)

    def before(model, step):
        if step == 3:
            model.register_buffer("centre", torch.ones(6))

    return fit(model, before=before)


def noise_for_all_rows_in_an_empty_tensor():
    return fit(Net(lambda net, z: z + z.new_empty(z.size(1)).normal_()))


def noise_for_all_rows_by_chance():
    return fit(Net(lambda net, z: z * torch.bernoulli(z.new_full((1, z.size(1)), 0.5))))


class Mapped(nn.Module):
    """Maps its first layer over the rows, which cannot be observed, and looks at their number."""

    def __init__(self, test):
        super().__init__()
        self.first, self.last, self.test = nn.Linear(4, 6), nn.Linear(6, 3), test

    def forward(self, x):
        z = torch.func.vmap(self.first)(x)
        return self.last(centred(z) if self.test(x) else z)


def a_mapped_forward_that_centres_large_batches():
    return fit(Mapped(lambda x: len(x) >= 8))


def a_mapped_forward_that_centres_the_last_batch():
    return fit(Mapped(lambda x: x.shape[0] == 6)) + fit(Mapped(lambda x: x.size(0) == 6))


# --- small beside the rest ---------------------------------------------------------------------------------------------


def a_small_penalty_over_the_number_of_rows():
    class Penalised(Net):
        def forward(self, x, y):
            penalty = sum(p.square().sum() for p in self.parameters())
            return F.cross_entropy(super().forward(x), y, reduction="none") + 1e-9 * penalty / len(x)

    return [value * 1e4 for value in fit(Penalised(), lambda model, x, y: model(x, y).mean())]


def a_small_shift_by_the_number_of_rows():
    return fit(Net(lambda net, z: z + 1e-9 * z.size(0)))


# --- what a forward does to what it is given ---------------------------------------------------------------------------


def a_state_in_a_dict():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.GRUCell(4, 6), nn.Linear(6, 3)

        def forward(self, x, state):
            state["h"] = self.cell(x, state["h"])
            return self.head(state["h"])

    def loss(model, x, y):
        state = {"h": torch.zeros(len(x), 6)}
        for _ in range(3):
            out = model(x, state)
        return F.cross_entropy(out, y) + state["h"].pow(2).mean()

    return fit(Cell(), loss)


def a_prediction_in_the_dict_of_a_batch():
    class Named(Net):
        def forward(self, batch):
            batch["out"] = super().forward(batch["x"])
            batch["first"] = batch["x"]
            return batch

    def loss(model, x, y):
        batch = {"x": x, "y": y}
        model(batch)
        assert batch["first"] is batch["x"] is x
        return F.cross_entropy(batch["out"], batch["y"])

    def through(model, x, y):
        out = model({"x": torch.ones(len(x), 4), "y": y})
        return F.cross_entropy(out["out"] * out["first"][:, :3], out["y"])

    return fit(Named(), loss) + fit(Named(), through)


def a_state_in_a_dataclass():
    @dataclasses.dataclass
    class State:
        h: torch.Tensor
        seen: list = dataclasses.field(default_factory=list)

    class Cell(Net):
        def forward(self, x, state):
            state.h = torch.tanh(self.first(x)) + state.h
            state.seen.append(state.h)
            return self.last(state.h)

    def loss(model, x, y):
        state = State(torch.zeros(len(x), 6))
        out = model(x, state), model(x * 2, state)
        return sum(F.cross_entropy(its, y) for its in out) + state.h.pow(2).mean() + state.seen[0].pow(2).mean()

    return fit(Cell(), loss)


def skips_that_blocks_take_from_a_list():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(12, 6)

        def forward(self, z, skips):
            return torch.tanh(self.layer(torch.cat([z, skips.pop()], 1)))

    class Skipping(Net):
        def __init__(self):
            super().__init__()
            self.up = nn.ModuleList([Up(), Up()])

        def forward(self, x):
            skips = [torch.ones(len(x), 6), self.first(x), self.first(2 * x)]
            z = centred(skips.pop())
            for up in self.up:
                z = up(z, skips)
            return self.last(z) + len(skips)

    return fit(Skipping())


def notes_in_what_it_is_given():
    class Noting(Net):
        def forward(self, x, info, log):
            info["rows"] = x.size(0)
            log.append("call")
            return super().forward(x)

    def loss(model, x, y):
        info, log = {}, []
        out = model(x, info, log)
        noted.extend([info["rows"], len(log)])
        return F.cross_entropy(out, y)

    noted = []
    return fit(Noting(), loss, batch_size=7) + noted


def notes_in_an_object_that_it_is_given():
    class Noting(Net):
        def forward(self, x, notes, names):
            notes.rows += x.size(0)
            names.add(f"call {x.size(0)}")
            return super().forward(x)

    notes, names = types.SimpleNamespace(rows=0), set()
    said = fit(Noting(), lambda model, x, y: F.cross_entropy(model(x, notes, names), y), batch_size=7)
    return [*said, notes.rows, *(int(name.split()[1]) for name in sorted(names))]


def a_teacher_that_it_is_given():
    class Student(Net):
        def forward(self, x, teacher):
            return super().forward(x) + teacher(x).detach()

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(()))

        def forward(self, x):
            self.rows += x.size(0)
            return x

    teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), Counting())
    said = fit(Student(), lambda model, x, y: F.cross_entropy(model(x, teacher), y))
    return said + everything(teacher)


def a_first_call_that_fails_once_it_has_written_to_its_argument():
    class Scaling(Net):
        def forward(self, x):
            x.div_(255.0)
            return torch.vmap(self.last)(torch.tanh(self.first(x)))

    def loss(model, x, y):
        out = model(x)
        return F.cross_entropy(out, y) + x.sum()

    return fit(Scaling(), loss)


def a_first_call_that_fails_once_it_has_written_to_a_list():
    class Noting(Net):
        def forward(self, x, log):
            log.append(x)
            return torch.vmap(self.last)(torch.tanh(self.first(x)))

    def loss(model, x, y):
        log = [torch.ones(len(x), 4)]
        return F.cross_entropy(model(x, log), y) * len(log) + log[-1].sum()

    return fit(Noting(), loss)


def a_sparse_matrix_among_the_outputs():
    class Graph(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("near", torch.eye(3).to_sparse())

        def forward(self, x):
            return super().forward(x), self.near

    def loss(model, x, y):
        out, near = model(x)
        return F.cross_entropy(torch.sparse.mm(near, out.t()).t(), y)

    return fit(Graph(), loss)


# --- functions that have no rule, which are tried -----------------------------------------------------------------------


def periods_of_the_whole_batch():
    """As TimesNet and Autoformer find them: what the batch has most of says how each row is rolled."""

    class Periods(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x))
            spectrum = torch.fft.rfft(z, dim=1)
            strength = spectrum.abs().mean(0)
            weights = spectrum.abs()
            total = torch.zeros_like(z)
            for place in torch.topk(strength, 2)[1]:
                rolled = torch.roll(z, -int(place), -1)
                total = total + rolled * weights[:, place].unsqueeze(1).repeat(1, z.shape[1])
            return self.last(torch.fft.irfft(spectrum * strength, n=z.shape[1], dim=1) + total)

    return fit(Periods(), batch_size=7)


def queries_that_are_chosen_for_each_row():
    """As Informer chooses them: indices of rows and heads beside those of the rows' own."""

    class Chosen(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x)).view(len(x), 2, 3)
            far = z.unsqueeze(-2).expand(-1, -1, 3, 3)[:, torch.tensor([[0], [1]]), torch.tensor([[0, 2], [1, 0]]), 0]
            top = (z * far.sum(-1, keepdim=True)).topk(2, sorted=False)[1]
            rows, heads = torch.arange(len(x))[:, None, None], torch.arange(2)[None, :, None]
            taken = z[rows, heads, top]
            written = z.cumsum(-1)
            written[rows, heads, top] = taken * 2
            written[:, :, [0]] = taken[..., :1] + z[:, :, 2:]
            return self.last((written - written.mean(0)).flatten(1))

    return fit(Chosen(), batch_size=7)


def a_router_for_each_row():
    """As Crossformer has it: a parameter that is repeated as often as there are rows."""

    class Routed(Net):
        def __init__(self):
            super().__init__()
            self.router = nn.Parameter(torch.linspace(-1, 1, 6).view(1, 2, 3))

        def forward(self, x):
            z = torch.tanh(self.first(x)).view(len(x), 2, 3)
            scores = torch.einsum("bqd,bkd->bqk", self.router.repeat(len(x), 1, 1), z)
            return self.last(torch.einsum("bqk,bkd->bqd", scores.softmax(-1), z).flatten(1))

    return fit(Routed(), batch_size=7)


def patches_by_keyword():
    class Patched(Net):
        def __init__(self):
            super().__init__()
            self.patch = nn.Linear(2, 2)

        def forward(self, x):
            parts = torch.tanh(self.first(x)).unfold(dimension=-1, size=2, step=2)
            sizes = np.array(parts.shape)
            parts = torch.reshape(parts, (sizes[0] * sizes[1], sizes[2]))
            return self.last(self.patch(parts).reshape(sizes[0], sizes[1] * 2))

    return fit(Patched(), batch_size=7)


def a_loss_of_frequencies():
    """In the script, where the second call of a form tells that it keeps rows apart."""

    def loss(model, x, y):
        out = model(x)
        near = torch.fft.rfft(out, dim=1) - torch.fft.rfft(F.one_hot(y, 3).to(out), dim=1)
        return near.abs().mean() + torch.diff(out, dim=1).square().sum(1).mean() + F.cross_entropy(out, y)

    return fit(Net(), loss, batch_size=7)


def writes_through_a_view_of_a_diagonal():
    class Written(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x)).view(len(x), 2, 3) * 1
            torch.diagonal(z, dim1=1, dim2=2).mul_(3)
            mean = z.mean(0)
            torch.diagonal(z, 0, 1, 2).add_(mean[0, :2])
            return self.last(z.flatten(1))

    return fit(Written(), batch_size=7)


def a_function_that_leaves_small_values_as_they_are():
    """``renorm`` ties columns together once they are long enough."""

    class Bounded(Net):
        def forward(self, x):
            self.step += 1
            z = torch.tanh(self.first(x))
            return self.last(torch.renorm(z * (0.01 if self.step < 4 else 1.0), 2, 1, 1.0))

    return fit(Bounded(), batch_size=7)


def a_forward_that_gives_its_argument_other_sizes():
    class Sized(Net):
        def forward(self, x):
            x.unsqueeze_(1).mul_(2)
            return super().forward(x.squeeze(1))

    def loss(model, x, y):
        out = model(x)
        return F.cross_entropy(out, y) + x.dim() + x.squeeze(1).mean()

    return fit(Sized(), loss, batch_size=7)


def targets_that_get_other_sizes():
    def loss(model, x, y):
        target = y.unsqueeze_(1)
        hot = torch.zeros(len(target), 3).scatter_(1, target, 1.0)
        return -(model(x).log_softmax(1) * hot).sum(1).mean() + y.dim()

    return fit(Net(), loss, batch_size=7)


def sizes_that_are_dropped_where_a_rank_has_one_row():
    class Dropped(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x)).unsqueeze(-1) * 1
            z.squeeze_()
            return self.last(z).unsqueeze_(0).squeeze_(0)

    return [*fit(Dropped(), batch_size=4), *fit(Dropped(), batch_size=5)]


class Again(torch.autograd.Function):
    """Keeps no activations: its backward calls what it was given again, as checkpoints and adjoints written by hand."""

    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        return None, *torch.autograd.grad(out, (x, *parameters), grad, allow_unused=True)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.calls = 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return torch.tanh(self.inner(x))


def called_again(run):
    class Recomputed(Net):
        def __init__(self):
            super().__init__()
            self.counted = Counted()

        def forward(self, x):
            again = run(self.counted)
            return self.last(Again.apply(again, torch.tanh(self.first(x)), *self.counted.parameters()))

    net = Recomputed()
    return [*fit(net, batch_size=7), net.counted.calls, net.counted.seen.item()]


def a_function_whose_backward_calls_a_module_again():
    return called_again(lambda module: module)


def a_function_whose_backward_calls_a_method_again():
    return called_again(lambda module: module.forward)


def a_function_whose_backward_calls_a_closure_again():
    def closed(module):
        twice = functools.partial(lambda scale, x: scale * module(x), 2.0)
        return lambda x: twice(x) - module(x)

    return called_again(closed)


class Doubled(torch.autograd.Function):
    """Writes to its argument, which is its output."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def a_function_that_writes_to_its_argument():
    class Written(Net):
        def forward(self, x):
            z = torch.tanh(self.first(x)) * 1
            doubled = Doubled.apply(z)
            doubled.add_(1)
            return self.last(z + doubled)

    return fit(Written(), batch_size=7)


def what_follows_a_function_of_ones_own_looks_at_the_batch():
    class Centred(Net):
        def forward(self, x):
            self.step += 1
            z = Doubled.apply(torch.tanh(self.first(x)) * 1)
            return self.last(z - (z.mean(0) if self.step > 2 else 0))

    return fit(Centred(), batch_size=7)


class Clipping(Again):
    """Clips the gradients of parameters, which are small at first."""

    @staticmethod
    def backward(ctx, grad):
        nothing, into, *grads = Again.backward(ctx, grad)
        return nothing, into, *(g.clamp(-0.08, 0.08) for g in grads)


def a_backward_that_clips_gradients_of_parameters_later():
    class Clipped(Net):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return self.last(Clipping.apply(self.inner, torch.tanh(self.first(x)), *self.inner.parameters()))

    scales = iter([1e-3] * 3 + [3.0] * 100)
    return fit(Clipped(), lambda model, x, y: next(scales) * F.cross_entropy(model(x), y), batch_size=7)


def centred_or_not(z):
    return centred(z) if SETTINGS["batch"] else torch.tanh(z)


torch.fx.wrap("centred_or_not")


class Calling(Net):
    def forward(self, x):
        return self.last(centred_or_not(self.first(x)))


def a_graph_that_calls_a_function_which_branches():
    def before(model, step):
        SETTINGS["batch"] = step in (3, 4)

    said = fit(torch.fx.symbolic_trace(Calling()), before=before)
    said += fit(nn.Sequential(torch.fx.symbolic_trace(Calling())), before=before)
    SETTINGS["batch"] = False
    return said


def a_graph_that_is_compiled_anew():
    def before(model, step):
        if step in (3, 5):
            for node in model.graph.nodes:
                if node.target is centred_or_not or node.target is centred:
                    node.target = centred if step == 3 else torch.relu
            model.recompile()

    return fit(torch.fx.symbolic_trace(Calling()), before=before)
