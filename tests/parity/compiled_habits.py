"""Functions that a script compiles by itself and calls on batches: losses, metrics, preprocessing, whole steps."""

import array
import collections
import copy
import io

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend
from parity.habits import data
from parity.later_habits import ClampedGradient
from torch.optim import SGD

mean, spread = torch.linspace(-1, 1, 4, dtype=torch.float64), torch.linspace(1, 2, 4, dtype=torch.float64)
weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
settings = {"scale": 1.0, "history": []}


def model_of():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batches(size, epochs=3):
    for _ in range(epochs):
        for x, y in data(size):
            yield x.double(), y


def compiled(function, **how):
    """A function that runs by a backend which counts, and the count."""
    runs = collections.Counter()

    def backend(graph, inputs):
        def run(*args):
            runs["graphs"] += 1
            return graph(*args)

        return run

    return torch.compile(function, backend=backend, **how), runs


def learn(loss_of, sizes=(8, 5), **how):
    """Train with a compiled loss of ``(logits, x, y)``; what was lost."""
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(loss_of, **how)
    said = []
    for size in sizes:
        for x, y in batches(size):
            said.append(descend(loss_of(model(x), x, y), optimizer).item())
    said += [parameter.sum().item() for parameter in model.parameters()]
    return said


def look(function, sizes=(8, 5), **how):
    """Call a compiled function of ``(x, y)`` in several epochs; its numbers."""
    torch.compiler.reset()
    function, _ = compiled(function, **how)
    said = []
    for size in sizes:
        for x, y in batches(size):
            result = function(x, y)
            for leaf in result if isinstance(result, (tuple, list)) else [result]:
                said += leaf.flatten().tolist() if isinstance(leaf, torch.Tensor) else [leaf]
    return said


# --- losses -----------------------------------------------------------------------------------------------------------


def a_smoothed_loss():
    return learn(lambda out, x, y: F.cross_entropy(out, y, label_smoothing=0.1))


def a_loss_in_one_graph():
    return learn(lambda out, x, y: F.cross_entropy(out, y) * 2, fullgraph=True)


def a_loss_of_dynamic_shapes():
    return learn(lambda out, x, y: F.cross_entropy(out, y) * 2, dynamic=True)


def a_loss_with_ignored_targets():
    def rows_by_label(out, x, y):
        return F.cross_entropy(out, y, ignore_index=0)

    return learn(rows_by_label)


def a_loss_whose_targets_are_all_ignored_on_some_ranks():
    def some(out, x, y):
        return F.cross_entropy(out, y, ignore_index=9)

    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(some)
    said = []
    for x, y in batches(8):
        ignored = torch.arange(len(y)) < len(y) - 1
        y = y.masked_fill(ignored, 9)
        said.append(descend(loss_of(model(x), x, y), optimizer).item())
    return said


def a_loss_with_a_penalty():
    return learn(lambda out, x, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).mean())


def means_that_are_added():
    def loss(out, x, y):
        return F.mse_loss(out, x[:, :3]) + 0.1 * out.pow(2).mean() - 0.5 * F.l1_loss(out, x[:, 1:]) + y.double().mean()

    return learn(loss)


def sums_that_are_added():
    return learn(lambda out, x, y: 0.01 * (out.pow(2).sum() + out[:, 0].sum()))


def a_sum_and_a_mean():
    return learn(lambda out, x, y: 0.01 * out.pow(2).sum() + out.pow(2).mean())


def a_sum_by_the_number_of_rows():
    return learn(lambda out, x, y: out.pow(2).sum() / len(x))


def a_mean_times_the_number_of_rows():
    return learn(lambda out, x, y: out.pow(2).mean() * x.shape[0] * 0.1)


def a_mean_by_the_number_of_rows():
    return learn(lambda out, x, y: out.pow(2).mean() / len(x))


def a_root_of_a_mean():
    return learn(lambda out, x, y: out.pow(2).mean().sqrt())


def a_loss_with_class_weights():
    return learn(lambda out, x, y: F.cross_entropy(out, y, weight=weights))


def a_loss_of_pairs():
    return learn(lambda out, x, y: F.cross_entropy(out @ out.T, torch.arange(len(out))))


def a_loss_by_row_and_its_mean_outside():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    by_row, _ = compiled(lambda out, y: F.cross_entropy(out, y, reduction="none"))
    said = [descend(by_row(model(x), y).mean(), optimizer).item() for x, y in batches(5)]
    return said


def a_loss_that_centres_the_batch():
    return learn(lambda out, x, y: F.cross_entropy(out - out.mean(0), y))


def a_loss_with_a_trained_temperature():
    temperature = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)

    def loss(out, x, y):
        return F.cross_entropy(out * temperature, y)

    said = learn(loss)
    return [*said, temperature.grad.item()]


def a_loss_whose_scale_changes():
    def loss(out, x, y):
        return F.cross_entropy(out, y) * settings["scale"]

    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(loss)
    said = []
    for scale in (1.0, 0.0, 0.5, 1.0):
        settings["scale"] = scale
        said += [descend(loss_of(model(x), x, y), optimizer).item() for x, y in batches(8, 1)]
    settings["scale"] = 1.0
    return said


def a_penalty_whose_factor_is_zero_at_first():
    factor = torch.zeros((), dtype=torch.float64)

    def loss(out, x, y):
        return out.pow(2).mean() + factor * out.pow(2).sum()

    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.1)
    loss_of, _ = compiled(loss)
    said = []
    for value in (0.0, 0.0, 0.1):
        factor.fill_(value)
        said += [descend(loss_of(model(x), x, y), optimizer).item() for x, y in batches(8, 1)]
    return said


def a_loss_with_a_clamped_gradient():
    return learn(lambda out, x, y: F.cross_entropy(ClampedGradient.apply(out), y))


def a_loss_that_hooks_a_gradient():
    def loss(out, x, y):
        out = out * 1.0
        if out.requires_grad:
            out.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return F.cross_entropy(out, y)

    return learn(loss)


def a_loss_that_remembers():
    settings["history"].clear()

    def loss(out, x, y):
        settings["history"].append(out.detach().mean())
        return F.cross_entropy(out, y)

    said = learn(loss)
    return [*said, len(settings["history"]), sum(value.item() for value in settings["history"])]


def a_loss_that_counts_its_calls():
    calls = 0

    def loss(out, x, y):
        nonlocal calls
        calls += 1
        return F.cross_entropy(out, y) * (1 if calls < 5 else 2)

    return [*learn(loss), calls]


def a_loss_with_a_running_mean():
    running = torch.zeros(3, dtype=torch.float64)

    def loss(out, x, y):
        with torch.no_grad():
            running.mul_(0.9).add_(0.1)
        return F.mse_loss(out, running.expand_as(out))

    return [*learn(loss), running.sum().item()]


def a_loss_that_branches_on_values():
    def loss(out, x, y):
        return F.cross_entropy(out, y) if out.detach().sum() > 0 else F.cross_entropy(2 * out, y)

    return learn(loss)


def a_loss_on_plain_tensors_first():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(lambda out, y: F.cross_entropy(out, y))
    plain = torch.arange(12, dtype=torch.float64).view(4, 3).sin()
    said = [loss_of(plain, torch.arange(4) % 3).item()]
    for x, y in batches(8):
        said.append(descend(loss_of(model(x), y), optimizer).item())
        said.append(loss_of(plain, torch.arange(4) % 3).item())
    return said


def a_loss_in_two_places_and_without_gradients():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(lambda out, y: F.mse_loss(out, y.double()[:, None].expand(-1, 3)))
    said = []
    for x, y in batches(8):
        with torch.no_grad():
            said.append(loss_of(model(x), y).item())
        said.append(descend(loss_of(model(x), y) + loss_of(2 * model(x), y), optimizer).item())
    return said


def a_loss_after_dynamo_was_reset():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(lambda out, y: F.cross_entropy(out, y))
    said = []
    for x, y in batches(8):
        said.append(descend(loss_of(model(x), y), optimizer).item())
        torch.compiler.reset()
    return said


def a_compiled_method():
    class Trainer:
        def __init__(self):
            self.smoothing, self.seen = 0.1, 0

        def loss(self, out, x, y):
            return F.cross_entropy(out, y, label_smoothing=self.smoothing)

        def counted(self, out, x, y):
            self.seen += 1
            return F.cross_entropy(out, y, label_smoothing=self.smoothing)

    trainer = Trainer()
    return [*learn(trainer.loss), *learn(trainer.counted), trainer.seen]


def a_loss_module_that_a_function_calls():
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    return learn(lambda out, x, y: criterion(out, y))


def a_loss_of_language():
    def loss(out, x, y):
        return F.cross_entropy(out.view(-1, 3), y.view(-1))

    return learn(loss)


def two_losses_at_once():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    both, _ = compiled(lambda out, y: {"loss": F.cross_entropy(out, y), "out": out * 2})
    said = []
    for x, y in batches(5):
        given = both(model(x), y)
        said.append(descend(given["loss"] + given["out"].pow(2).mean(), optimizer).item())
    return said


def a_sum_and_a_penalty_that_is_zero_at_first():
    penalty = torch.zeros((), dtype=torch.float64)
    summed, _ = compiled(lambda x: x.pow(2).sum() + penalty)
    said = []
    for step, (x, _) in enumerate(batches(8)):
        penalty.fill_(float(step > 1))
        said.append(summed(x).item())
    return said


def changing(function, change, sizes=(8,)):
    """Numbers of a compiled function of ``(x, y)`` whose surroundings change after each batch."""
    torch.compiler.reset()
    function, _ = compiled(function)
    said = []
    for size in sizes:
        for step, (x, y) in enumerate(batches(size)):
            change(step)
            said.append(function(x, y).item())
    return said


def a_reduction_by_an_attribute_of_the_function():
    def loss(x, y):
        return x.pow(2).sum() if loss.is_sum else x.pow(2).mean()

    return changing(loss, lambda step: setattr(loss, "is_sum", step > 1))


def a_reduction_by_a_default():
    def loss(x, y, reduction="mean"):
        return F.mse_loss(x, 2 * x, reduction=reduction)

    return changing(loss, lambda step: setattr(loss, "__defaults__", ("sum" if step > 1 else "mean",)))


def a_reduction_by_a_type_that_is_set():
    weight = {"value": torch.ones(1)}
    kinds = (torch.float32, torch.float64)

    def loss(x, y):
        return x.sum() if weight["value"].dtype == torch.float64 else x.mean()

    return changing(loss, lambda step: weight.update(value=torch.ones(1, dtype=kinds[step > 1])))


def a_reduction_by_the_default_type():
    def loss(x, y):
        return x.sum() if torch.get_default_dtype() == torch.float64 else x.mean()

    before = torch.get_default_dtype()
    try:
        return changing(loss, lambda step: torch.set_default_dtype(torch.float64 if step > 1 else torch.float32))
    finally:
        torch.set_default_dtype(before)


def a_reduction_by_what_nobody_watches():
    mode = array.array("d", [0.0])
    return changing(lambda x, y: x.sum() if mode[0] else x.mean(), lambda step: mode.__setitem__(0, float(step > 1)))


def class_weights_that_come_later():
    criterion = nn.CrossEntropyLoss()

    def change(step):
        criterion.weight = weights if step > 1 else None

    return changing(lambda x, y: criterion(x[:, :3], y), change)


def a_generator_of_numbers_that_is_held_or_given():
    torch.compiler.reset()
    held, given = np.random.default_rng(0), np.random.default_rng(1)
    scaled, _ = compiled(lambda x: (x * held.beta(1.0, 1.0)).mean())
    scaled_by, _ = compiled(lambda x, numbers: (x * numbers.beta(1.0, 1.0)).mean())
    return [value.item() for x, _ in batches(8) for value in (scaled(x), scaled_by(x, given))]


def a_text_and_a_list_that_grow():
    text, items = io.StringIO(), []
    add = items.append

    def loss(out, x, y):
        text.write("a")
        add(1)
        return F.cross_entropy(out, y)

    return [*learn(loss), len(text.getvalue()), len(items)]


def an_object_that_grows():
    class Meter:
        def __init__(self):
            self.seen = bytearray()

        def update(self):
            self.seen.append(1)

    meter = Meter()

    def loss(out, x, y):
        meter.update()
        return F.cross_entropy(out, y)

    return [*learn(loss), len(meter.seen)]


# --- metrics and preprocessing ----------------------------------------------------------------------------------------


def normalised_inputs():
    return look(lambda x, y: (x - mean) / spread)


def an_accuracy():
    return look(lambda x, y: (x[:, :3].argmax(1) == y).float().mean())


def a_count():
    return look(lambda x, y: (x[:, :3].argmax(1) == y).sum())


def a_metric_and_its_rows():
    return look(lambda x, y: (x.mean(), x * 2, x.sum()))


def a_number_of_rows():
    return look(lambda x, y: (x * 2, len(x), x.shape[0] * 2))


def a_python_number():
    return look(lambda x, y: (x.sum(1), 3.5))


def an_extreme():
    return look(lambda x, y: (x.max(), x.min(), x.std()))


def rows_that_are_turned():
    return look(lambda x, y: x.flip(0))


def rows_that_are_mixed():
    return look(lambda x, y: 0.3 * x + 0.7 * x[torch.arange(len(x) - 1, -1, -1)])


def inputs_that_are_written():
    torch.compiler.reset()
    scaled, _ = compiled(lambda x: x.mul_(2))
    said = []
    for x, _ in batches(8):
        scaled(x)
        said.append(x.sum().item())
    return said


def an_input_that_is_returned():
    torch.compiler.reset()
    same, _ = compiled(lambda x: (x, x.view(-1)))
    said = []
    for x, _ in batches(8):
        first, flat = same(x)
        first.add_(1)
        said += [x.sum().item(), flat.sum().item(), first is x]
    return said[:2]


def a_mask_as_large_as_the_batch():
    masks = {rows: torch.linspace(0, 1, rows, dtype=torch.float64) for rows in range(1, 9)}
    return look(lambda x, y: x * masks[len(x)][:, None])


def a_mask_that_is_passed():
    mask = torch.linspace(0, 1, 8, dtype=torch.float64)
    torch.compiler.reset()
    masked, _ = compiled(lambda x, mask: x * mask[: len(x), None])
    return [masked(x, mask).sum().item() for x, _ in batches(8)]


def noise_on_inputs():
    torch.manual_seed(7)
    return look(lambda x, y: x + torch.randn_like(x))


def rows_that_are_chosen():
    return look(lambda x, y: x[x[:, 0] > 0].sum(0))


def a_default_argument_and_a_keyword():
    def scaled(x, y, factor=2.0, *, shift=torch.tensor(1.0, dtype=torch.float64)):
        return x * factor + shift

    return look(scaled)


def a_factor_that_is_annealed():
    torch.compiler.reset()
    scaled, _ = compiled(lambda x, factor: (x * factor).mean())
    return [scaled(x, 1 / (1 + step)).item() for step, (x, _) in enumerate(batches(8))]


def a_compiled_function_that_calls_another():
    torch.compiler.reset()
    inner = torch.compile(lambda x: (x - mean) * settings["scale"], backend="eager")
    said = []
    outer, _ = compiled(lambda x: inner(x).pow(2).mean())
    for scale in (1.0, 2.0):
        settings["scale"] = scale
        said += [outer(x).item() for x, _ in batches(8)]
    settings["scale"] = 1.0
    return said


# --- steps ------------------------------------------------------------------------------------------------------------


def a_whole_step():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step, runs = compiled(step)
    return [*[step(x, y).item() for size in (8, 5) for x, y in batches(size)], runs["graphs"] > 0]


def a_forward_with_its_loss():
    return forward_with_loss(model_of())


def a_forward_with_norms_and_its_loss():
    torch.manual_seed(3)
    return forward_with_loss(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double())[:-1]


def a_compiled_model_with_norms_and_other_numbers_of_rows():
    torch.compiler.reset()
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    model, _ = compiled(plain)
    optimizer = SGD(plain.parameters(), 0.3)
    return [descend(F.cross_entropy(model(x), y), optimizer).item() for size in (8, 5) for x, y in batches(size)]


def forward_with_loss(model):
    torch.compiler.reset()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, runs = compiled(lambda x, y: F.cross_entropy(model(x), y))
    said = [descend(loss_of(x, y), optimizer).item() for size in (8, 5) for x, y in batches(size)]
    model.eval()
    with torch.no_grad():
        said += [loss_of(x, y).item() for x, y in batches(8)]
    return [*said, runs["graphs"] > 0]


def a_step_whose_model_ties_rows():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()

        def forward(self, x):
            hidden = self.first(x)
            return self.last(hidden - hidden.mean(0))

    torch.compiler.reset()
    model = Tied()
    optimizer = SGD(model.parameters(), 0.3)
    loss_of, _ = compiled(lambda x, y: F.cross_entropy(model(x), y))
    return [descend(loss_of(x, y), optimizer).item() for x, y in batches(5)]


def a_step_with_a_scheduler():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step, _ = compiled(step)
    said = []
    for x, y in batches(8):
        said.append(step(x, y).item())
        scheduler.step()
    return [*said, "step" in vars(optimizer)]


def a_step_of_adam():
    torch.compiler.reset()
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step, runs = compiled(step)
    return [*[step(x, y).item() for x, y in batches(8)], runs["graphs"] > 9]


def a_step_of_two_optimizers():
    torch.compiler.reset()
    model = model_of()
    optimizers = [torch.optim.Adam(model[0].parameters(), 0.05), SGD(model[2].parameters(), 0.3, momentum=0.9)]
    schedulers = [torch.optim.lr_scheduler.LinearLR(optimizers[0], 0.5, 1, 6)]

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if len(schedulers) == 1:
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizers[1], 2, 0.5))
        for scheduler in schedulers:
            scheduler.step()
        return loss

    step, _ = compiled(step)
    said = [step(x, y).item() for x, y in batches(8)]
    states = [value for each in optimizers for state in each.state.values() for value in state.values()]
    said += [value.sum().item() for value in states if value is not None]
    return [*said, *(vars(optimizer)["step"]._wrapped_by_lr_sched for optimizer in optimizers)]


def a_step_with_a_closure():
    torch.compiler.reset()
    model = model_of()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    step, _ = compiled(step)
    return [float(step(x, y)) for x, y in batches(8)]


def a_compiled_optimizer_step():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    step, runs = compiled(optimizer.step)
    said = []
    for x, y in batches(8):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        step()
        optimizer.zero_grad()
        said.append(loss.item())
    return [*said, runs["graphs"] > 0]


def compiled_transforms():
    """``torch.func`` in what is compiled, whole."""
    model = model_of()
    skeleton = copy.deepcopy(model)
    rows = torch.compile(lambda x: torch.func.vmap(skeleton, in_dims=0)(x), backend="eager", fullgraph=True)
    optimizer = SGD(model.parameters(), 0.2)
    said = []
    for x, y in data():
        said.append(float(descend(F.cross_entropy(model(x), y), optimizer)))
        said.append(rows(x).pow(2).sum().item())
        said.append(rows(torch.ones(4, 4, dtype=torch.float64)).sum().item())
    return said


# --- modules, and methods of them, in one graph ------------------------------------------------------------------------


def a_loss_module_in_one_graph():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    criterion, _ = compiled(nn.CrossEntropyLoss(weights, label_smoothing=0.1), fullgraph=True)
    return [descend(criterion(model(x), y), optimizer).item() for x, y in batches(5)]


def a_teacher_in_one_graph():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model_of().requires_grad_(False)

        def forward(self, x):
            hidden = self.net(x)
            return hidden - hidden.mean(0)

    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    teacher, runs = compiled(Teacher(), fullgraph=True)
    teacher.eval()
    copied = copy.deepcopy(teacher)
    said = [F.mse_loss(teacher(torch.ones(2, 4).double()), torch.zeros(2, 3)).item(), runs["graphs"]]
    for x, _ in batches(5):
        with torch.no_grad():
            aim = teacher(x).softmax(1)
        said.append(descend(F.cross_entropy(model(x), aim), optimizer).item())
    return [*said, copied(torch.ones(1, 4).double()).sum().item(), isinstance(teacher, torch._dynamo.OptimizedModule)]


def evaluation_in_one_graph():
    torch.compiler.reset()
    model, _ = compiled(model_of(), fullgraph=True)
    model.eval()
    with torch.no_grad():
        return [(model(x).argmax(1) == y).float().mean().item() for x, y in batches(5)]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale = model_of(), nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return self.net(x)

    def loss(self, out, y):
        return F.cross_entropy(out * self.scale, y)


def a_method_of_a_model_in_one_graph():
    torch.compiler.reset()
    model = Scaled()
    optimizer = SGD(model.parameters(), 0.3)
    model.loss, _ = compiled(model.loss, fullgraph=True)
    said = [descend(model.loss(model(x), y), optimizer).item() for x, y in batches(5)]
    return [*said, model.scale.sum().item(), model.scale.grad.norm().item()]


def a_forward_in_one_graph():
    torch.compiler.reset()
    model = model_of()
    optimizer = SGD(model.parameters(), 0.3)
    model.forward, runs = compiled(model.forward, fullgraph=True)
    said = [descend(F.cross_entropy(model(x), y), optimizer).item() for x, y in batches(8)]
    return [
        *said,
        F.cross_entropy(model.forward(torch.eye(4).double()), torch.arange(4) % 3).item(),
        runs["graphs"] > 3,
    ]


def a_hooked_model_in_one_graph():
    torch.compiler.reset()
    seen, said, runs = {}, [], collections.Counter()
    model = Scaled()

    def backend(graph, inputs):
        runs["graphs"] += 1
        return graph

    model.compile(backend=backend, fullgraph=True)
    model.register_forward_hook(lambda module, args, out: seen.update(out=out.detach()))
    model.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(0),))
    optimizer = SGD(model.parameters(), 0.3)
    for x, y in batches(8):
        said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said.append(seen["out"].max().item())
    return [*said, runs["graphs"] > 0]
