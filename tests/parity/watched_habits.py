"""What a forward may branch on, write to or be replaced by, in places where a watcher may look away."""

import collections
import contextlib
import dataclasses
import functools
import operator
import random
import types
from unittest import mock

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything
from parity.habits import data
from parity.later_habits import Net, centred, fit
from torch.ao import quantization
from torch.nn.utils import parametrize

STEPS = torch.zeros(())
LOSSES = {}
SEEN = []


def after(start, change):
    """Change the model before a step."""
    return lambda model, step: change(model) if step == start else None


# --- more than is looked at -------------------------------------------------------------------------------------------

FLAGS = {"centre": False}


def a_flag_beside_many_things():
    class Boxes(Net):
        def __init__(self):
            super().__init__()
            self.edges = [(i, [i + 1]) for i in range(5000)]

        def forward(self, x):
            z = self.last(self.first(x))
            return centred(z) if FLAGS["centre"] else z

    FLAGS["centre"] = False
    return fit(Boxes(), before=after(3, lambda model: FLAGS.update(centre=True)))


def chain_of(length):
    def last(z):
        return deep(z)

    for _ in range(length):

        def step(z, last=last):
            return last(z)

        last = step
    return last


def deep(z):
    return centred(z) if FLAGS["deep"] else z


def a_flag_at_the_end_of_a_long_chain():
    FLAGS["deep"] = False
    chain = chain_of(14)
    net = Net(lambda net, z: deep(chain(z)) if FLAGS["deep"] is None else chain(z))
    return fit(net, before=after(3, lambda model: FLAGS.update(deep=True)))


# --- forwards that are replaced ---------------------------------------------------------------------------------------


def a_forward_replaced_by_a_closure_around_a_norm():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    plain = model.forward
    model.calls = 0

    def forward(x):
        model.calls += 1
        return plain(x) / 2

    model.forward = forward
    said = fit(model)
    return [*said, model.calls, model[1].num_batches_tracked.item(), *everything(model[1])]


def a_forward_under_a_decorator():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    model.forward = torch.no_grad()(model.forward) if model.training is None else torch.enable_grad()(model.forward)
    return [*fit(model), model[1].num_batches_tracked.item(), *everything(model[1])]


# --- what a forward writes to -----------------------------------------------------------------------------------------


def a_counter_in_a_tensor_of_the_module_s_file():
    STEPS.zero_()

    def mix(net, z):
        STEPS.add_(1)
        return z / STEPS.sqrt()

    return [*fit(Net(mix)), STEPS.item()]


def a_loss_left_in_a_registry():
    class Penalised(Net):
        def forward(self, x):
            LOSSES["l2"] = self.last.weight.pow(2).sum()
            return super().forward(x)

    LOSSES.clear()
    return fit(Penalised(), loss=lambda model, x, y: F.cross_entropy(model(x), y) + 1e-2 * LOSSES["l2"])


def a_list_of_what_was_seen_by_a_forward_under_vmap():
    class Mapped(Net):
        def forward(self, x):
            SEEN.append(len(x))
            return self.last(torch.func.vmap(self.first)(x))

    SEEN.clear()
    return [*fit(Mapped()), *SEEN]


# --- tensors that are zero at first -----------------------------------------------------------------------------------


def a_weight_that_is_a_tensor_and_begins_at_zero():
    class Vae(Net):
        def forward(self, x, beta):
            z = self.first(x)
            return self.last(z), beta * z.pow(2).sum(1) / len(x)

    weights = iter(range(1000))

    def loss(model, x, y):
        out, penalty = model(x, torch.tensor(min(1.0, next(weights) / 4)))
        return F.cross_entropy(out, y) + penalty.sum()

    return fit(Vae(), loss=loss)


def a_weight_on_the_module_that_begins_at_zero():
    class Vae(Net):
        def forward(self, x):
            z = self.first(x)
            return self.last(z), self.beta * z.pow(2).sum(1) / len(x)

    def loss(model, x, y):
        out, penalty = model(x)
        return F.cross_entropy(out, y) + penalty.sum()

    def before(model, step):
        model.beta = torch.tensor(min(1.0, step / 4))

    return fit(Vae(), loss=loss, before=before)


# --- one of several settings ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Phase:
    centre: bool


def a_phase_of_several():
    class Phased(Net):
        def __init__(self):
            super().__init__()
            self.phases = [Phase(False), Phase(True)]
            self.phase = self.phases[0]

        def forward(self, x):
            z = self.last(self.first(x))
            return centred(z) if self.phase.centre else z

    return fit(Phased(), before=after(3, lambda model: setattr(model, "phase", model.phases[1])))


def a_stage_of_several():
    class Staged(Net):
        def __init__(self):
            super().__init__()
            self.stages = [{"centre": False}, {"centre": True}]
            self.cfg = self.stages[0]

        def forward(self, x):
            z = self.last(self.first(x))
            return centred(z) if self.cfg["centre"] else z

    return fit(Staged(), before=after(3, lambda model: setattr(model, "cfg", model.stages[1])))


# --- tensors that are replaced ----------------------------------------------------------------------------------------


def a_bank_that_is_filled_later():
    class Banked(Net):
        def __init__(self):
            super().__init__()
            self.bank = torch.zeros(0, 3)

        def forward(self, x):
            z = self.last(self.first(x))
            return z if len(self.bank) == 0 else z - torch.cat([self.bank, z]).mean(0)

    return fit(Banked(), before=after(3, lambda model: setattr(model, "bank", torch.ones(4, 3))))


def fit_weighted(end):
    """Give each row a weight after three steps; ``end(logits, weights)`` gives what forward returns."""

    class Weighted(Net):
        def __init__(self):
            super().__init__()
            self.rows = torch.ones(1)

        def forward(self, x):
            return end(self.last(self.first(x)), self.rows)

    steps = iter(range(1000))

    def loss(model, x, y):
        if next(steps) >= 3:
            model.rows = 1 + x[:, :1].abs()
        return F.cross_entropy(model(x), y)

    return fit(Weighted(), loss=loss)


def a_weight_of_each_row_later():
    return fit_weighted(lambda logits, weights: logits * weights)


def a_weight_of_each_row_that_is_summed_later():
    """On four ranks some have one row of the last batch, which fits any."""

    def end(logits, weights):
        weighted = logits * weights
        return logits + 0.1 * weighted.sum(0) + weighted.std(0)

    return fit_weighted(end)


# --- names that are not written as attributes -------------------------------------------------------------------------

CFG = types.SimpleNamespace(centre=False, double=False)
USES = types.SimpleNamespace(use_centre=False)
OPS = {"centre": centred, "double": lambda z: 2 * z}


def names_in_a_tuple():
    def mix(net, z):
        for name in ("centre", "double"):
            if getattr(CFG, name):
                z = OPS[name](z)
        return z

    CFG.centre = False
    return fit(Net(mix), before=after(3, lambda model: setattr(CFG, "centre", True)))


def settings_unpacked():
    def tail(z, centre=False, **_):
        return centred(z) if centre else z

    CFG.centre = False
    return fit(Net(lambda net, z: tail(z, **vars(CFG))), before=after(3, lambda model: setattr(CFG, "centre", True)))


def settings_as_a_dict():
    phase = Phase(False)
    net = Net(lambda net, z: centred(z) if next(iter(dataclasses.asdict(phase).values())) else z)
    return fit(net, before=after(3, lambda model: setattr(phase, "centre", True)))


def a_name_that_is_put_together():
    USES.use_centre = False
    kinds = ["centre"]
    net = Net(lambda net, z: centred(z) if getattr(USES, f"use_{kinds[0]}") else z)
    return fit(net, before=after(3, lambda model: setattr(USES, "use_centre", True)))


def a_setting_that_is_matched():
    phase = Phase(False)

    def mix(net, z):
        match phase:
            case Phase(centre=True):
                return centred(z)
        return z

    return fit(Net(mix), before=after(3, lambda model: setattr(phase, "centre", True)))


# --- what is made in a forward ----------------------------------------------------------------------------------------


def noise_of_a_generator_made_in_forward():
    def mix(net, z):
        generator = torch.Generator().manual_seed(0)
        return z + torch.randn(z.shape, generator=generator)

    return fit(Net(mix))


def a_distribution_of_what_cannot_be_observed():
    class Encoder(Net):
        def forward(self, x):
            mean = torch.func.vmap(self.first)(x)
            return torch.distributions.Normal(mean, 1.0, validate_args=False), self.last(mean)

    standard = torch.distributions.Normal(0.0, 1.0)

    def loss(model, x, y):
        given, out = model(x)
        return F.cross_entropy(out, y) + torch.distributions.kl_divergence(given, standard).mean()

    return fit(Encoder(), loss=loss)


# --- what was tried leaves nothing ------------------------------------------------------------------------------------

WRITTEN = torch.zeros(2)
COUNT = 0


def counters_of_a_forward_that_cannot_be_observed():
    """On the class, in the module's file, in a tensor, in a closure."""
    global COUNT
    COUNT, inside = 0, 0
    WRITTEN.zero_()

    class Counting(Net):
        steps = 0

        def forward(self, x):
            global COUNT  # noqa: PLW0603
            nonlocal inside
            Counting.steps += 1
            COUNT += 1
            inside += 1
            WRITTEN.add_(1)
            scale = min(1.0, (Counting.steps + COUNT + inside + WRITTEN.sum()) / 50)
            return self.last(torch.func.vmap(self.first)(x)) * scale

    return [*fit(Counting()), Counting.steps, COUNT, inside, *WRITTEN.tolist()]


def a_trained_tensor_of_zeros_beside_the_parameters():
    class Gained(Net):
        def __init__(self):
            super().__init__()
            self.gain = torch.zeros(3, requires_grad=True)

        def forward(self, x):
            return self.last(torch.func.vmap(self.first)(x)) + self.gain * x[:, :3]

    model = Gained()
    optimizer = torch.optim.SGD([*model.parameters(), model.gain], 0.3)
    return [*fit(model, before=lambda model, step: (optimizer.step(), optimizer.zero_grad())), *model.gain.tolist()]


MASK = torch.ones(1, 1)


def a_mask_that_is_made_by_the_first_call():
    global MASK  # noqa: PLW0603
    MASK = torch.ones(1, 1)

    def mix(net, z):
        global MASK  # noqa: PLW0603
        if MASK.size(0) < z.size(1):
            MASK = torch.ones(z.size(1), z.size(1)).tril()
        return z @ MASK

    return fit(Net(mix))


class Closed:
    """Answers no question but one, as torch.fx's namespaces do."""

    factor = 1.0

    def __getattr__(self, name):
        raise RuntimeError(f"nothing is known of {name}")


CLOSED = Closed()


def a_thing_that_raises_when_it_is_asked():
    CLOSED.factor = 1.0
    change = after(3, lambda model: setattr(CLOSED, "factor", 2.0))
    return fit(Net(lambda net, z: z * CLOSED.factor), before=change)


# --- parameters that go on under another name, or in other memory -----------------------------------------------------


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def a_parametrization_from_the_middle_on():
    """It gives the weight its memory by ``Tensor.set_``, for which autograd has another node."""
    return fit(
        Net(), before=after(3, lambda model: parametrize.register_parametrization(model.first, "weight", Doubled()))
    )


def a_parametrization_that_is_removed():
    model = Net()
    parametrize.register_parametrization(model.first, "weight", Doubled())
    return fit(model, before=after(3, lambda model: parametrize.remove_parametrizations(model.first, "weight")))


def a_spectral_norm_from_the_middle_on():
    return fit(Net(), before=after(3, lambda model: nn.utils.parametrizations.spectral_norm(model.first)))


def weights_in_other_memory():
    def change(model):
        with torch.no_grad():
            model.first.weight.set_(model.first.weight.detach().clone())

    return fit(Net(), before=after(3, change))


def a_bias_that_is_resized():
    """That of the last layer is frozen meanwhile, as torch wants it."""

    def change(model):
        bias = model.last.bias.requires_grad_(False)
        bias.resize_(3)
        bias.resize_as_(bias.clone()).requires_grad_(True)

    return fit(Net(), before=after(3, change))


def weights_in_other_memory_between_forward_and_backward():
    def loss(model, x, y):
        out = F.cross_entropy(model(x), y)
        with torch.no_grad():
            model.first.bias.set_(model.first.bias.detach().clone())
        return out

    return fit(Net(), loss)


def weights_in_another_order():
    def change(model):
        model.first.weight.data = model.first.weight.data.t().contiguous().t()

    return fit(Net(), before=after(3, change))


def channels_last_from_the_middle_on():
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 2, 2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    model(torch.zeros(2, 4))
    return fit(model, before=after(3, lambda model: model.to(memory_format=torch.channels_last)))


class Named(Net):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.ones(3))

    def forward(self, x):
        z, own = super().forward(x), self._parameters
        return z * own["rows"] if "rows" in own else centred(z) * own["all"]


def a_parameter_by_another_name():
    return fit(Named(), before=after(3, lambda model: model._parameters.update(all=model._parameters.pop("rows"))))


class Keyed(Net):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"rows": nn.Linear(3, 3)})

    def forward(self, x):
        z, parts = super().forward(x), self.parts
        return parts["rows"](z) if "rows" in parts else centred(parts["all"](z))


def a_layer_by_another_name():
    return fit(Keyed(), before=after(3, lambda model: model.parts.update({"all": model.parts.pop("rows")})))


def a_bias_that_becomes_none():
    class Bare(Net):
        def forward(self, x):
            z = super().forward(x)
            return z if self.last.bias is not None else centred(z)

    def change(model):
        model.last._parameters["bias"] = None

    return fit(Bare(), before=after(3, change))


# --- outputs that lie in each other's memory --------------------------------------------------------------------------


class Several(Net):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, x):
        return self.outputs(super().forward(x) * 1)


def written_to(outputs, write):
    def loss(model, x, y):
        given = model(x)
        write(given)
        return F.cross_entropy(given[0], y) + given[1].square().mean()

    return fit(Several(outputs), loss)


def an_output_that_is_written_to_and_a_column_of_it():
    return written_to(lambda z: (z, z[:, 0]), lambda given: given[0].mul_(2))


def an_output_and_a_column_of_it_that_is_written_to():
    return written_to(lambda z: (z, z[:, 0]), lambda given: given[1].mul_(2))


def two_outputs_that_lie_across_each_other():
    return written_to(lambda z: (z[:, :3], z[:, 1:]), lambda given: given[1].mul_(2))


def an_output_and_the_same_in_another_shape():
    return written_to(lambda z: (z, z.unsqueeze(1)), lambda given: given[1].add_(given[1].detach()))


def pieces_of_an_output():
    return written_to(lambda z: z.repeat(1, 2).chunk(2, 1), lambda given: None)


def outputs_of_one_memory_by_themselves():
    return written_to(lambda z: (z, z.view(-1, 1, 3), z[:, 1]), lambda given: None)


# --- what is seen of a module's own tensors without looking at their values -------------------------------------------


class Branching(Net):
    """Looks at all rows once its own parameter or buffer is another one."""

    def __init__(self, question):
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.zeros(2))
        self.question = question

    def forward(self, x):
        z = super().forward(x) * self.own.sum()
        return centred(z) if self.question(self) else z


class Special(nn.Parameter):
    pass


def a_parameter_of_another_length():
    return fit(
        Branching(lambda net: len(net.own) == 3),
        before=after(3, lambda net: setattr(net, "own", nn.Parameter(torch.ones(3)))),
    )


def a_parameter_of_another_class():
    return fit(
        Branching(lambda net: isinstance(net.own, Special)),
        before=after(3, lambda net: setattr(net, "own", Special(torch.ones(2)))),
    )


def a_buffer_of_another_type():
    change = after(3, lambda net: setattr(net, "mask", torch.zeros(2, dtype=torch.bool)))
    return fit(Branching(lambda net: net.mask.dtype == torch.bool), before=change)


# --- hooks that give what is no gradient ------------------------------------------------------------------------------


def refused(register):
    model = Net()
    register(model.first.weight)
    try:
        return fit(model)
    except (RuntimeError, TypeError) as error:
        return [float(ord(letter)) for letter in str(error).partition("\n")[0]]


def hooks_that_give_other_sizes():
    return refused(lambda weight: weight.register_hook(lambda grad: grad[:1]))


def hooks_that_give_other_types():
    return refused(lambda weight: weight.register_hook(lambda grad: grad.half()))


def hooks_that_give_text():
    return refused(lambda weight: weight.register_hook(lambda grad: "x"))


def hooks_after_accumulation_that_give_something():
    return refused(lambda weight: weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad))


# --- what all rows share is dropped -----------------------------------------------------------------------------------


class DropsWeights(Net):
    """Drops entries of a weight, as AWD-LSTM's WeightDrop does, by an attribute that torch's layers have as well."""

    def __init__(self, drop):
        super().__init__()
        self.drop, self.dropout = drop, 0.5

    def forward(self, x):
        return self.last(torch.tanh(self.drop(self, self.first(x), x)))


def a_weight_that_is_dropped():
    return fit(DropsWeights(lambda net, z, x: z + x @ F.dropout(net.first.weight, net.dropout, net.training).T))


def columns_that_are_dropped_if_a_rate_is_set():
    def drop(net, z, x):
        return z * (torch.rand(6) > net.dropout) if net.dropout > 0 and net.training else z

    return fit(DropsWeights(drop))


def dropout_of_the_scripts_own_with_one_mask():
    class Shared(nn.Dropout):
        def forward(self, x):
            return x * (torch.rand(x.shape[1:]) > self.p) / (1 - self.p) if self.training else x

    return fit(nn.Sequential(nn.Linear(4, 6), Shared(0.5), nn.Linear(6, 3)))


# --- containers of classes that answer otherwise ----------------------------------------------------------------------


class Pair(tuple):
    """As e3nn's Irrep has it, which is no sequence to its users."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError


class Loud(list):
    def __iter__(self):
        raise NotImplementedError

    def __deepcopy__(self, held):
        return self


class Nested(dict):
    def items(self, deep):
        return deep and []


def containers_whose_classes_answer_otherwise():
    def mix(net, z):
        return centred(z) if list.__getitem__(net.loud, 0) else z

    net = Net(mix)
    net.pair, net.loud, net.nested = Pair((1, 2)), Loud([False]), Nested(a=1)
    return fit(net, before=after(4, lambda model: list.__setitem__(model.loud, 0, True)))


# --- hooks of the old kind --------------------------------------------------------------------------------------------


class Guided(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))


def hooked(where, scale=None):
    """Train it, with a hook from the second epoch on and until the fourth."""
    torch.manual_seed(0)
    model, seen = Guided(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def hook(layer, inputs, outputs):
        seen.extend([float(len(outputs[0])), outputs[0].abs().sum().item()])
        return None if scale is None else tuple(one if one is None else one.clamp(min=0) * scale for one in inputs)

    handle, told = None, []
    for epoch in range(4):
        if epoch in (1, 3):
            handle = where(model).register_backward_hook(hook) if handle is None else handle.remove()
        for x, y in data():
            told.append(descend(F.cross_entropy(model(x), y), optimizer).item())
            told += [*seen, float(len(seen)), model.body[2][1](x @ torch.ones(4, 6)).sum().item()]
            seen.clear()
    return told + everything(model)


def an_old_hook_on_a_layer_without_parameters():
    return hooked(lambda model: model.body[2][1], 0.5)


def an_old_hook_on_a_layer():
    return hooked(lambda model: model.body[0])


def an_old_hook_on_a_part():
    return hooked(lambda model: model.body[2], 0.5)


def an_old_hook_on_the_model():
    return hooked(lambda model: model)


# --- things that nothing refers to weakly -----------------------------------------------------------------------------


class Asking(Net):
    """Mixes rows once what it holds is another thing."""

    def __init__(self, value, mix):
        super().__init__()
        self.value, self.decide = value, mix

    def forward(self, x):
        return self.last(self.decide(self.value, torch.tanh(self.first(x))))


class Name(str):
    pass


class Level(int):
    on = False


class Switch:
    on = False


REPLACED = (
    (torch.Tensor.add, torch.Tensor.cumsum, lambda function, z: function(z, 0)),
    (operator.methodcaller("add", 0), operator.methodcaller("cumsum", 0), lambda function, z: function(z)),
    (torch.float32, torch.float64, lambda kind, z: centred(z) if kind == torch.float64 else z),
    (torch.device("cpu"), torch.device("meta"), lambda device, z: centred(z) if device.type == "meta" else z),
    (np.add, np.multiply, lambda function, z: centred(z) if function(3, 1) == 3 else z),
    (Name("a"), Name("b"), lambda name, z: centred(z) if name == "b" else z),
    (str.upper, str.lower, lambda function, z: centred(z) if function("B") == "b" else z),
)


def things_that_nothing_refers_to_weakly():
    said = []
    for first, later, mix in REPLACED:
        said += fit(Asking(first, mix), before=after(3, lambda model, later=later: setattr(model, "value", later)))
    return said


TABLE = {"on": False}
LEVEL, SWITCHES, GET = Level(0), np.array([Switch(), None], dtype=object), TABLE.get


def flags_within_values_of_python_and_numpy():
    LEVEL.on = SWITCHES[0].on = TABLE["on"] = False
    kinds = (
        (lambda: LEVEL.on, lambda: setattr(LEVEL, "on", True)),
        (lambda: SWITCHES[0].on, lambda: setattr(SWITCHES[0], "on", True)),
        (lambda: GET("on"), lambda: TABLE.update(on=True)),
    )
    said = []
    for asks, on in kinds:
        model = Asking(None, lambda _, z, asks=asks: centred(z) if asks() else z)
        said += fit(model, before=after(3, lambda _, on=on: on()))
    return said


class Counting(Net):
    """Counts on its class, as registries and statistics do."""

    calls = ticks = 0

    @classmethod
    def tick(cls):
        cls.ticks += 1

    def forward(self, x):
        type(self).calls += 1
        z = torch.tanh(self.first(x))
        return self.last(centred(z) if Counting.calls > 3 else z)


def counters_on_a_class():
    Counting.calls = Counting.ticks = 0
    model = Counting()
    said = fit(model, before=lambda model, step: model.tick())
    del type(model).ticks
    return [*said, float(Counting.calls), float(hasattr(Counting, "ticks"))]


class Observing(Net):
    """Its observer is switched on later; a kernel looks at that, and no code of Python's."""

    def __init__(self):
        super().__init__()
        self.observer = quantization.FusedMovingAvgObsFakeQuantize().float()
        self.observer.apply(quantization.disable_observer)
        self.observer.apply(quantization.disable_fake_quant)

    def forward(self, x):
        return self.last(self.observer(self.first(x).float()).to(x.dtype))


def an_observer_that_is_switched_on_later():
    def switch(model, step):
        if step == 2:
            model.apply(quantization.enable_observer)
        if step == 3:
            model.apply(quantization.enable_fake_quant)

    return [round(value, 4) for value in fit(Observing(), before=switch)]  # kernels of float32


def rebuilt(sizes, state):
    layer = Drawing(*sizes)
    layer.layer.load_state_dict(state)
    return layer


class Drawing(nn.Module):
    """Draws a seed of its own when it is made, and is copied by being made anew, as the layers of Keras are."""

    def __init__(self, *sizes):
        super().__init__()
        self.layer, self.seed = nn.Linear(*sizes), random.randint(1, 10**9)

    def __reduce__(self):
        return rebuilt, ((self.layer.in_features, self.layer.out_features), self.layer.state_dict())

    def forward(self, x):
        return self.layer(x)


def layers_that_draw_when_they_are_copied():
    torch.manual_seed(0)
    random.seed(0)
    said = fit(Drawing(4, 3))
    return [*said, random.random(), torch.rand(1).item()]


class Heard(type):
    """A metaclass of a metaclass that counts its subclasses."""

    count = 0

    def __init_subclass__(cls, **options):
        Heard.count += 1


class Kind(Heard):
    """The author's one."""


class Tabled(nn.Module, metaclass=Kind):
    w_one, w_two = 1.0, 0.5
    scale: float = 2.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def factors(self):
        constants = sum(value for name, value in vars(type(self)).items() if name.startswith("w_"))
        return constants * sum(getattr(self, name) for name in type(self).__annotations__)

    @classmethod
    def table(cls):
        if "_table" not in cls.__dict__:
            cls._table = {}
        return cls._table

    def forward(self, x):
        return self.layer(x) * self.factors()


def classes_of_models_that_scripts_look_into():
    torch.manual_seed(1)
    model, said = Tabled(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(3):
        swapped = mock.patch.object(type(model), "forward", lambda self, x: self.layer(x).tanh())
        with swapped if epoch == 1 else contextlib.nullcontext():
            for x, y in data(batch_size=6, n=30):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                model.table()[len(said)] = loss.item()
                said.append(loss.item())
        said += [
            Heard.count,
            len(type(model).__mro__),
            float("forward" in vars(type(model))),
            float(nn.Module in Tabled.__bases__),
        ]
    said += Tabled.__dict__["_table"].values()
    del Tabled._table
    return said


class FreezesItself(nn.Module):
    def __init__(self, thaws):
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.thaws, self.calls = thaws, 0

    def forward(self, x):
        self.calls += 1
        self.part.requires_grad_(self.calls % 3 != 1 if self.thaws else self.calls < 4)
        return self.last(self.part(self.first(x)).tanh())


def forwards_that_freeze_a_part():
    said = []
    for thaws in (False, True):
        torch.manual_seed(1)
        model = FreezesItself(thaws)
        said += fit(model) + everything(model)
    return said


def hooks_that_are_put_aside_and_back():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    model[1].register_forward_hook(lambda module, args, out: out - out.mean(0))
    kept, model[1]._forward_hooks = model[1]._forward_hooks, collections.OrderedDict()

    def put_back(of):
        of[1]._forward_hooks = kept

    return fit(model, before=after(5, put_back)) + everything(model)


class Viewed(nn.Module):
    """Gives back a view of what it is given, or what it is given, where it is not to compute."""

    def __init__(self, shape):
        super().__init__()
        self.weight, self.shape = nn.Parameter(torch.ones(8)), shape

    def forward(self, h):
        return h.view(-1, *self.shape) if self.training else (h * self.weight).view(-1, *self.shape)


def views_of_what_a_model_is_given():
    said = []
    for shape in ((2, 4), (8,)):
        torch.manual_seed(1)
        body, heads = nn.Linear(4, 8), Viewed(shape)
        optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], 0.05)
        for x, y in data(batch_size=8, n=32):
            h = body(x)
            z = heads(h)
            z[:, 0] *= 2
            loss = (z.flatten(1).mean(1) - y).pow(2).mean() + h.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said += [loss.item(), h.sum().item()]
        said += everything(body)
    return said


class Memory(nn.Module):
    """Writes to a memory of each row's own by gradients, as test-time training does."""

    def __init__(self):
        super().__init__()
        self.inner, self.keys, self.values, self.last = (nn.Linear(4, 4, bias=False) for _ in range(4))
        self.gradients = torch.func.vmap(torch.func.grad(self.error), in_dims=(None, 0, 0))

    def error(self, weights, key, value):
        return (torch.func.functional_call(self.inner, weights, key) - value).pow(2).mean()

    def forward(self, x):
        weights, keys = dict(self.inner.named_parameters()), self.keys(x)
        grads = self.gradients(weights, keys, self.values(x))
        mine = {name: weight - 0.1 * grads[name] for name, weight in weights.items()}
        return self.last(torch.func.vmap(functools.partial(torch.func.functional_call, self.inner))(mine, keys))


def forwards_that_differentiate():
    torch.manual_seed(1)
    model = Memory()
    return fit(model) + everything(model)


SHOWN = {"centre": False}


class Dispatching(nn.Module):
    def __init__(self, shown):
        super().__init__()
        self.layer, self.last, self.centre, self.shown = nn.Linear(4, 6), nn.Linear(6, 3), False, shown

    @functools.singledispatchmethod
    def act(self, h):
        return h - h.mean(0) if self.centre else h

    def forward(self, x):
        h = self.act(self.layer(x))
        return self.last(h - h.mean(0) if self.shown["centre"] else h)


def flags_behind_proxies_and_dispatching_methods():
    said = []
    for change in (lambda model: setattr(model, "centre", True), lambda model: SHOWN.update(centre=True)):
        torch.manual_seed(1)
        SHOWN.update(centre=False)
        model = Dispatching(types.MappingProxyType(SHOWN))
        said += fit(model, before=after(3, change)) + everything(model)
    return said
