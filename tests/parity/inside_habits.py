"""Models that compute more than an output for each row: losses, packed sequences, compiled code, kernels for each."""

import collections
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything, loop
from parity.habits import data, state
from parity.later_habits import ClampedGradient, Net, fit
from torch import distributions
from torch.ao import quantization
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Inside(nn.Module):
    """Two layers; ``end(net, logits, hidden, x, y)`` gives what forward returns."""

    def __init__(self, end):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.places = nn.Embedding(6, 6)
        self.end, self.factor, self.seen = end, 0.0, 0.0

    def forward(self, x, y=None):
        hidden = torch.tanh(self.first(x) + self.places(torch.arange(6)).sum(0))
        return self.end(self, self.last(hidden), hidden, x, y)


def fitted(end, take=lambda out: out, before=None):
    return fit(Inside(end), lambda model, x, y: take(model(x, y)), before)


# --- losses -----------------------------------------------------------------------------------------------------------


def logits_and_loss():
    return fitted(lambda net, logits, hidden, x, y: (logits, F.cross_entropy(logits, y)), lambda out: out[1])


def ignored_targets():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(logits, y.where(x[:, 0] > 0, -1), ignore_index=-1)

    return fitted(end)


def ignored_targets_and_a_function_that_clamps():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(ClampedGradient.apply(logits), y.where(x[:, 0] > 0, -1), ignore_index=-1)

    return fitted(end)


def several_losses():
    def end(net, logits, hidden, x, y):
        return {
            "classes": F.cross_entropy(logits, y, label_smoothing=0.1),
            "input": F.mse_loss(hidden[:, :4], x),
            "sum": 0.01 * F.smooth_l1_loss(hidden[:, :4], x, reduction="sum"),
        }

    return fitted(end, lambda out: sum(out.values()))


def losses_that_are_added_inside():
    def end(net, logits, hidden, x, y):
        loss = F.cross_entropy(logits, y)
        return logits, loss + 0.1 * F.l1_loss(hidden[:, :4], x) + 0.01 * net.last.weight.pow(2).sum()

    return fitted(end, lambda out: out[1])


def a_loss_that_scales_rows():
    def end(net, logits, hidden, x, y):
        loss = F.cross_entropy(logits, y)
        return F.cross_entropy(logits * loss, y)  # every row depends on all

    return fitted(end)


def a_detached_loss_that_scales_rows():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(logits * F.cross_entropy(logits, y).detach(), y)

    return fitted(end)


def a_loss_that_is_looked_at():
    def end(net, logits, hidden, x, y):
        loss = F.cross_entropy(logits, y)
        return loss * 2 if loss > 1.0 else loss * 3

    return fitted(end)


def a_loss_that_decides():
    def end(net, logits, hidden, x, y):
        loss = F.cross_entropy(logits, y)
        if loss < 1.0:
            loss = F.cross_entropy(logits - hidden.mean(0)[:3], y)
        return loss

    return fitted(end)


def a_weight_that_decides():
    def end(net, logits, hidden, x, y):
        if net.last.bias.abs().max() > 0.5:
            logits = logits - logits.mean(0)
        return F.cross_entropy(logits, y)

    model = Inside(end)
    nn.init.zeros_(model.last.bias)
    return fit(model, lambda model, x, y: model(x, y)) + fit(Net(lambda net, z: decided(net, z)))


def decided(net, z):
    return z - z.mean(0) if float(net.last.weight.std()) > 0.4 else z


def an_argument_that_decides():
    model = Net(lambda net, z, on: z - z.mean(0) if on.any() else z)
    steps = iter(range(1000))
    return fit(model, lambda model, x, y: F.cross_entropy(model(x, torch.tensor([next(steps) > 2])), y))


def a_mask_of_its_own_that_decides():
    return fit(Net(lambda net, z: z * 2 if torch.ones(3, 3).tril().any() else z - z.mean(0)))


def a_loss_that_is_kept_on_the_module():
    def end(net, logits, hidden, x, y):
        net.seen = F.cross_entropy(logits, y)
        return logits

    return fit(Inside(end), lambda model, x, y: (model(x, y) ** 2).mean() + model.seen)


def a_number_that_is_kept_on_the_module():
    model = Inside(lambda net, logits, hidden, x, y: note(net, F.cross_entropy(logits, y)))

    def note(net, loss):
        net.seen = loss.item()
        return loss

    return [*fit(model, lambda model, x, y: model(x, y)), model.seen]


def a_loss_per_row():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(logits, y, reduction="none")

    return fitted(end, lambda out: (out * torch.arange(len(out))).mean())


def a_loss_of_weights():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(logits, y) + F.mse_loss(net.last.weight, torch.ones(3, 6))

    return fitted(end)


def weights_of_classes():
    def end(net, logits, hidden, x, y):
        return F.cross_entropy(logits, y, weight=torch.tensor([1.0, 2.0, 0.5]))

    return fitted(end)


def a_loss_inside_a_checkpoint():
    def end(net, logits, hidden, x, y):
        return checkpoint(lambda h, t: F.cross_entropy(net.last(h), t), hidden, y, use_reentrant=False)

    return fitted(end)


def a_checkpoint_around_a_model_with_a_loss():
    model = Inside(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y))
    return fit(model, lambda model, x, y: checkpoint(model, x, y, use_reentrant=False))


def a_penalty_that_becomes_active():
    def end(net, logits, hidden, x, y):
        loss = F.cross_entropy(logits, y)
        return loss + net.factor * hidden.std(0).mean() if net.factor else loss

    return fitted(end, before=lambda model, step: setattr(model, "factor", 0.1 * (step > 3)))


def another_loss_later():
    def end(net, logits, hidden, x, y):
        if net.factor > 0.2:
            return F.mse_loss(logits, F.one_hot(y, 3).to(logits.dtype))
        return F.cross_entropy(logits, y)

    return fitted(end, before=lambda model, step: setattr(model, "factor", 0.1 * step))


def targets_only_in_training():
    model = Inside(lambda net, logits, hidden, x, y: (logits, None if y is None else F.cross_entropy(logits, y)))
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        descend(model(x, y)[1], optimizer)
        model.eval()
        with torch.no_grad():
            said = F.cross_entropy(model(x)[0], y) + model(x, y)[1]
        model.train()
        return said

    return loop(model, step, optimizer)


def accumulated_losses():
    model = Inside(lambda net, logits, hidden, x, y: (logits, F.cross_entropy(logits, y)))
    optimizer = SGD(model.parameters(), 0.3)
    steps = iter(range(1000))

    def step(x, y):
        loss = model(x, y)[1] / 2
        loss.backward()
        if next(steps) % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return loop(model, step, optimizer)


def gradients_of_the_input_of_a_model_with_a_loss():
    model = Inside(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y))

    def loss(model, x, y):
        x = x.clone().requires_grad_()
        first = model(x, y)
        (slope,) = torch.autograd.grad(first, x, create_graph=True)
        return first + slope.pow(2).sum()

    return fit(model, loss)


def a_hook_on_an_inner_layer_of_a_model_with_a_loss():
    model = Inside(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y.where(x[:, 0] > 0, -1), ignore_index=-1))
    seen = []
    model.first.register_full_backward_hook(lambda layer, inputs, outputs: seen.append(outputs[0].pow(2).sum().item()))
    return [*fit(model, lambda model, x, y: model(x, y)), *seen]


def logits_for_every_token():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places, self.head = nn.Embedding(9, 6), nn.Embedding(4, 6), nn.Linear(6, 9)

        def forward(self, idx, targets=None):
            h = torch.tanh(self.words(idx) + self.places(torch.arange(idx.size(1))))
            logits = self.head(h)
            flat = logits.view(-1, logits.size(-1))
            return flat, None if targets is None else F.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)

    def loss(model, x, y):
        tokens = (x.abs() * 3).long().clamp(max=8)
        flat, loss = model(tokens, tokens.roll(1, 1).where(tokens > 1, -1))
        return loss + 0.01 * flat.logsumexp(1).mean()

    return fit(Language(), loss)


# --- forwards that tie rows together, and what leaves them ------------------------------------------------------------


class Body(nn.Module):
    """Its rows are independent."""

    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, z):
        return z + self.layers(z)


class Tying(nn.Module):
    """Bodies between means over the batch; ``end(net, x, z)`` gives what forward returns."""

    def __init__(self, end=lambda net, x, z: net.last(z)):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.bodies = nn.ModuleList([Body(), Body()])
        self.end, self.aux, self.on = end, 0.0, True

    def forward(self, x):
        z = self.first(x)
        for body in self.bodies:
            z = body(z - z.mean(0)) if self.on else body(z)
        return self.end(self, x, z)


def tied(end=None, loss=None, **options):
    return fit(Tying() if end is None else Tying(end), loss, **options)


def rows_that_are_tied():
    return tied() + fit(Wrapped(Tying()))


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.ones(()))

    def forward(self, x):
        z = self.inner(x) * self.scale
        return z / z.std(0).mean()


def outputs_that_are_changed_in_place():
    def loss(model, x, y):
        out = model(x)
        out[:, 0] = 0.5
        out += 1
        return F.cross_entropy(out.mul_(2), y)

    return tied(loss=loss)


def the_same_output_twice():
    return tied(lambda net, x, z: (net.last(z), z, z), lambda m, x, y: sum(o.pow(2).mean() for o in m(x)))


def the_input_among_the_outputs():
    def loss(model, x, y):
        x = (x * 2).requires_grad_()
        same, out = model(x)
        return F.cross_entropy(out, y) + (same * out[:, :1]).mean()

    return tied(lambda net, x, z: (x, net.last(z)), loss)


def a_parameter_and_a_mean_among_the_outputs():
    def loss(model, x, y):
        out, weight, mean = model(x)
        return F.cross_entropy(out, y) + (weight * mean.sum()).sum() * 0.01

    return tied(lambda net, x, z: (net.last(z), net.last.weight, z.mean(0)), loss)


def something_beside_the_outputs():
    def end(net, x, z):
        net.aux = z.pow(2).mean()
        net.hidden = z
        return net.last(z)

    def loss(model, x, y):
        return F.cross_entropy(model(x), y) + 0.1 * model.aux + (model.hidden[:, 0] * x[:, 0]).sum() * 0.01

    return tied(end, loss)


def only_what_is_beside_the_outputs():
    def end(net, x, z):
        net.aux = net.last(z).pow(2).mean()
        return net.last(z)

    def loss(model, x, y):
        model(x)
        return model.aux

    return tied(end, loss)


def two_calls_and_a_retained_graph():
    model = Tying()
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        first, second = model(x), model(x.flip(0))
        loss = F.cross_entropy(first, y) + (first - second).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        (second.sum() * 0.01).backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def gradients_that_are_asked_for():
    def loss(model, x, y):
        first = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(first, [*model.parameters()], create_graph=True)
        return first + 0.1 * sum(g.pow(2).sum() for g in grads)

    return tied(loss=loss)


def layers_that_freeze_and_come_back():
    def before(model, step):
        model.bodies[0].requires_grad_(step % 4 > 1)
        model.last.bias.requires_grad_(step != 3)

    model = Tying()
    optimizer = SGD(model.parameters(), 0.1)
    steps = iter(range(1000))

    def step(x, y):
        before(model, next(steps))
        return descend(F.cross_entropy(model(x), y), optimizer)

    return loop(model, step, optimizer)


def a_body_that_is_replaced():
    model = Tying()
    optimizer = SGD(model.parameters(), 0.1)
    steps = iter(range(1000))

    def step(x, y):
        if next(steps) == 4:
            model.bodies[1] = Body()
            optimizer.add_param_group({"params": model.bodies[1].parameters()})
            model.bodies.insert(1, Body())
            optimizer.add_param_group({"params": model.bodies[1].parameters()})
        return descend(F.cross_entropy(model(x), y), optimizer)

    return loop(model, step, optimizer)


def a_body_that_is_left_out():
    def before(model, step):
        model.on = step % 3 == 0

    return tied(before=before)


def a_body_with_other_weights():
    def end(net, x, z):
        weights = {name: value * 2 for name, value in net.bodies[0].named_parameters()}
        return net.last(torch.func.functional_call(net.bodies[0], weights, (z,)))

    return tied(end)


def a_body_with_hooks():
    model = Tying()
    seen = []
    model.bodies[1].register_forward_hook(lambda layer, inputs, out: seen.append(out.mean().item()))
    model.bodies[0].layers[0].register_full_backward_hook(lambda layer, inputs, out: seen.append(out[0].sum().item()))
    return [*fit(model), *seen]


def a_body_that_is_computed_again():
    return tied(lambda net, x, z: net.last(checkpoint(net.bodies[0], z - z.mean(0), use_reentrant=False)))


def a_body_by_itself():
    def loss(model, x, y):
        model(x)
        return F.cross_entropy(model.last(model.bodies[1](model.first(x))), y)

    return tied(loss=loss)


def a_body_of_two_models():
    one, other = Tying(), Tying()
    other.bodies[1] = one.bodies[1]
    both = nn.ModuleList([one, other])
    optimizer = SGD(both.parameters(), 0.1)
    return loop(both, lambda x, y: descend(F.cross_entropy(one(x) + other(x.flip(1)), y), optimizer), optimizer)


def a_model_in_evaluation_between_steps():
    model = Tying(lambda net, x, z: net.last(F.dropout(z, 0.5, net.training) if not net.training else z))
    optimizer = SGD(model.parameters(), 0.1)

    def step(x, y):
        descend(F.cross_entropy(model(x), y), optimizer)
        model.eval()
        with torch.inference_mode():
            said = model(x).sum() + model(x[:3]).sum()
        model.train()
        return said

    return loop(model, step, optimizer)


def places_that_are_computed_from_weights():
    def end(net, x, z):
        places = net.first.weight.t() @ net.last.weight.t()  # [4, 3], of parameters alone
        return net.last(z) + places.sum(0) + (z.mean(0)[:3] * places[0]).sum()

    return tied(end)


def a_batch_that_shrinks_to_one_row_for_each_rank():
    class Squeezing(Net):
        def forward(self, x):
            return super().forward(x.unsqueeze(0).squeeze()) if len(x) > 1 else super().forward(x)

    def other(net, z):
        return z * 2 if len(z) == 1 else z

    return [*fit(Squeezing(), batch_size=3), *fit(Net(other), batch_size=3), *fit(Net(other), batch_size=4)]


# --- packed sequences -------------------------------------------------------------------------------------------------


class Packed(nn.Module):
    def __init__(self, kind=nn.GRU, end=lambda net, out, state: state[-1], **options):
        super().__init__()
        self.rnn = kind(1, 5, batch_first=True, **options)
        self.head, self.end = nn.Linear(5, 3), end

    def forward(self, x, lengths):
        out, state = self.rnn(pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False))
        return self.head(self.end(self, out, state))


def lengths_of(x):
    return (x.abs().sum(1) * 10).long() % 4 + 1


def read(model):
    return fit(model, lambda model, x, y: F.cross_entropy(model(x, lengths_of(x)), y))


def last_states():
    return read(Packed()) + read(Packed(nn.LSTM, lambda net, out, state: state[0][-1], num_layers=2))


def padded_again():
    def mean(net, out, state):
        steps, lengths = pad_packed_sequence(out, batch_first=True, padding_value=0.5)
        mask = torch.arange(steps.size(1))[None] < lengths[:, None]
        return (steps * mask[..., None]).sum(1) / lengths[:, None] + 0.01 * steps.sum(1) * steps.size(1)

    return read(Packed(end=mean)) + read(Packed(nn.RNN, mean))


def the_last_step_of_each():
    def last(net, out, state):
        steps, lengths = pad_packed_sequence(out, batch_first=True, total_length=4)
        return steps[torch.arange(len(steps)), lengths - 1]

    return read(Packed(end=last))


def both_directions():
    def ends(net, out, state):
        return torch.cat([state[0], state[1]], 1)[:, :5] + pad_packed_sequence(out, True)[0].sum(1)[:, 5:]

    return read(Packed(nn.GRU, ends, bidirectional=True))


def packed_data():
    def spread(net, out, state):
        shifted = PackedSequence(torch.tanh(out.data), out.batch_sizes, out.sorted_indices, out.unsorted_indices)
        return pad_packed_sequence(shifted, batch_first=True)[0].sum(1) + out.data.mean()

    return read(Packed(end=spread))


def states_of_the_scripts_own():
    model = Packed()
    model.start = nn.Parameter(torch.ones(1, 1, 5) / 2)

    def forward(x, lengths):
        packed = pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
        return model.head(model.rnn(packed, model.start.expand(1, len(x), 5).contiguous())[1][-1])

    model.forward = forward
    return read(model)


def sorted_by_the_script():
    class Sorted(Packed):
        def forward(self, x, lengths):
            lengths, order = lengths.sort(descending=True)
            out, _ = self.rnn(pack_padded_sequence(x[order][..., None], lengths.tolist(), batch_first=True))
            steps, _ = pad_packed_sequence(out, batch_first=True)
            return self.head(steps[:, 0])[order.argsort()]

    return read(Sorted())


def packed_outside_of_the_model():
    rnn, head = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 3)
    model = nn.ModuleDict({"rnn": rnn, "head": head})
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        packed = pack_padded_sequence(x[..., None], lengths_of(x), batch_first=True, enforce_sorted=False)
        return descend(F.cross_entropy(head(rnn(packed)[1][-1]), y), optimizer)

    return loop(model, step, optimizer)


def a_model_that_is_given_packed_sequences():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, packed):
            return self.head(self.rnn(packed)[1][-1])

    def loss(model, x, y):
        packed = pack_padded_sequence(x[..., None], lengths_of(x), batch_first=True, enforce_sorted=False)
        return F.cross_entropy(model(packed), y)

    return fit(Reader(), loss)


# --- compiled code ----------------------------------------------------------------------------------------------------


def counting(runs):
    def backend(graph, inputs):
        def run(*args):
            runs["graphs"] += 1
            return graph(*args)

        return run

    return backend


def compiled(wrap):
    runs = collections.Counter()
    said = wrap(counting(runs))
    torch.compiler.reset()
    return [*said, runs["graphs"] > 0]


def a_compiled_model():
    return compiled(lambda backend: fit(torch.compile(Net(), backend=backend)))


def a_compiled_model_with_its_loss():
    def wrap(backend):
        model = Inside(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y.where(x[:, 0] > 0, -100)))
        return fit(torch.compile(model, backend=backend), lambda model, x, y: model(x, y))

    return compiled(wrap)


def a_compiled_model_with_its_loss_in_one_graph():
    def wrap(backend):
        model = Inside(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y))
        return fit(torch.compile(model, backend=backend, fullgraph=True), lambda model, x, y: model(x, y))

    return compiled(wrap)[:-1]


def a_compiled_model_that_began_on_too_few_rows():
    def wrap(backend):
        model = Inside(lambda net, logits, hidden, x, y: (logits, F.cross_entropy(logits, y)))
        fast = torch.compile(model, backend=backend)
        with torch.no_grad():
            x, y = next(iter(data(1)))
            said = fast(x, y)[1].item()
        torch.compiler.reset()
        return [said, *fit(fast, lambda model, x, y: model(x, y)[1])]

    return compiled(wrap)


def a_model_that_compiles_itself():
    def wrap(backend):
        model = Net()
        model.compile(backend=backend)
        return fit(model)

    return compiled(wrap)


def a_compiled_layer():
    def wrap(backend):
        model = Net(lambda net, z: centred(z))
        model.first = torch.compile(model.first, backend=backend)
        return fit(model)

    def centred(z):
        return z - z.mean(0)

    return compiled(wrap)


def a_compiled_function_of_rows():
    def wrap(backend):
        model = Inside(lambda net, logits, hidden, x, y: squashed(logits))
        squashed = torch.compile(lambda z: torch.tanh(z) * 2, backend=backend)
        return fit(model, lambda model, x, y: F.cross_entropy(model(x, y), y))

    return compiled(wrap)


def a_compiled_loss():
    def wrap(backend):
        loss = torch.compile(lambda logits, y: F.cross_entropy(logits, y) + logits.mean(), backend=backend)
        return fit(Net(), lambda model, x, y: loss(model(x), y))

    return compiled(wrap)[:-1]


def batches_of_other_sizes_for_compiled_code():
    def wrap(backend):
        model = torch.compile(Net(), backend=backend)
        optimizer = SGD(model.parameters(), 0.3)
        said = []
        for size in (8, 6, 5, 3):
            for x, y in data(size):
                said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        return said

    return compiled(wrap)


def two_batches_of_different_sizes():
    class Adapting(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
            self.head = nn.Linear(6, 3)

        def forward(self, own, other):
            own, other = self.norm(self.body(own)), self.norm(self.body(other))
            apart = (own.mean(0) - other.mean(0)).pow(2).sum()
            return self.head(own), self.head(torch.cat([own, other])).logsumexp(1).mean() + apart

    def by_loaders():
        own = DataLoader(TensorDataset(torch.randn(42, 4), torch.randint(0, 3, (42,))), 8)
        yield from zip(own, DataLoader(TensorDataset(torch.randn(34, 4)), 6), strict=True)

    def in_one_batch(items):  # support and queries of an episode
        rows = torch.stack([row for row, _ in items])
        return rows[:4], torch.tensor([label for _, label in items[:4]]), rows[4:]

    said = []
    model = Adapting()
    optimizer = SGD(model.parameters(), 0.05)
    for (x, y), (z,) in by_loaders():
        said.append(trained(optimizer, model(x, z), y))
    rows = TensorDataset(torch.randn(42, 4), torch.randint(0, 3, (42,)))
    for x, y, z in DataLoader(rows, 14, collate_fn=in_one_batch):
        said.append(trained(optimizer, model(x, z), y))
    return said + [p.detach().pow(2).sum().item() for p in model.state_dict().values()]


def trained(optimizer, outputs, y):
    logits, more = outputs
    loss = F.cross_entropy(logits, y) + 0.1 * more
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def tensors_made_of_batches():
    said = []
    model = nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), 0.05)
    for x, y in DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 8):
        rows = torch.tensor(x, dtype=torch.float64) + torch.as_tensor(y, dtype=torch.float64)[:, None]
        logits = model(rows * torch.DoubleTensor(x))
        places = torch.stack([torch.arange(len(y)), torch.LongTensor(y)])
        wanted = torch.sparse_coo_tensor(places, torch.ones(len(y), dtype=torch.float64), (len(y), 3)).to_dense()
        by_row = torch.tensor([loss.item() for loss in F.cross_entropy(logits, y, reduction="none")])
        loss = F.mse_loss(logits.softmax(1), wanted)
        said += [loss.as_subclass(torch.Tensor).item(), torch.tensor([loss.detach(), by_row.mean()]).sum().item()]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return said


def losses_times_numbers():
    def fitted_by(loss_of, every=1, ignored=()):
        torch.manual_seed(1)
        scale.fill_(0.25)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizer = SGD(model.parameters(), 0.1)
        rows, labels = torch.randn(44, 4), torch.randint(0, 3, (44,))
        labels[list(ignored)] = -100
        said = []
        for step, (x, y) in enumerate(DataLoader(TensorDataset(rows, labels), 8)):
            loss = loss_of(model(x), y)
            loss.backward()
            scale.mul_(1.5)
            if step % every == every - 1:
                said.append(torch.nan_to_num(loss.detach(), nan=-5.0).item())  # of nothing but targets to ignore
                optimizer.step()
                optimizer.zero_grad()
        return said + [p.detach().pow(2).sum().item() for p in model.parameters()]

    scale = torch.tensor(0.25)
    said = []
    for ignored in [(), range(3, 20), range(8)]:
        said += fitted_by(lambda z, y: F.cross_entropy(z, y) / 2, 2, ignored)
        said += fitted_by(lambda z, y: -(0.5 * F.cross_entropy(z, y)) * -3, 1, ignored)
        said += fitted_by(lambda z, y: (F.cross_entropy(z, y).mean() * 2).sum() / 3, 1, ignored)
    said += fitted_by(lambda z, y: F.cross_entropy(z, y) * scale)
    said += fitted_by(lambda z, y: F.mse_loss(z, torch.zeros_like(z)) / 4 + F.l1_loss(z, torch.ones_like(z)) * 2, 2)
    weights = torch.tensor([1.0, 2.0, 0.5])
    for ignored in [(), range(3, 20)]:
        said += fitted_by(lambda z, y: sum([F.cross_entropy(z, y), F.nll_loss(z.log_softmax(1), y)]) / 2, 1, ignored)
        said += fitted_by(
            lambda z, y: 1 - (F.cross_entropy(z, y) * 2 - z.pow(2).mean()) + z.abs().sum() / 9, 2, ignored
        )

    def by_and_by(z, y):
        loss = 0
        for column in range(3):
            loss += F.mse_loss(z[:, column], (y == column).double())
        for _ in range(80):  # more than are waited for together
            loss = loss + F.cross_entropy(z, y) / 80
        loss /= 2
        loss *= scale
        loss -= 1
        kept = torch.zeros(())
        kept += loss
        return loss + kept.detach()

    said += fitted_by(by_and_by) + fitted_by(by_and_by, 2, range(3, 20))
    twice = nn.Parameter(torch.ones(()))
    said += fitted_by(lambda z, y: (loss := F.mse_loss(z, torch.ones_like(z))) + loss + 0.1 * twice.pow(2))
    said += [twice.grad.item()]
    return said + fitted_by(lambda z, y: F.cross_entropy(z, y, weights) / 2, 2, range(3, 20))


def targets_that_every_rank_has():
    class Texts(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

        def forward(self, tokens, targets):
            logits = self.head(torch.tanh(self.tokens(tokens)))
            return logits, F.cross_entropy(logits.view(-1, 9), targets.view(-1), ignore_index=-1)

    class Shifts(Texts):
        def forward(self, tokens, targets):
            targets[:, 0] = -1
            return super().forward(tokens, targets)

    said = []
    for kind in (Texts, Shifts):
        torch.manual_seed(1)
        model, weights = kind(), torch.linspace(0.5, 2.0, 9)
        optimizer = SGD(model.parameters(), 0.5)
        tokens = torch.randint(0, 9, (10, 8, 6))
        for step, batch in enumerate(tokens):
            targets = batch.roll(-1, 1)
            targets[:3, 4:] = -1
            logits, loss = model(batch, targets)
            if step % 3 == 2:
                loss = loss + F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weights, ignore_index=-1)
            (loss / 2).backward()
            if step % 2:
                said.append(loss.item())
                optimizer.step()
                optimizer.zero_grad()
    return said + [p.detach().pow(2).sum().item() for p in model.parameters()]


def classes_that_are_compared():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.letters, self.head = nn.Linear(4, 6), None, nn.Linear(6, 3)

        def forward(self, x):
            parts = [None if self.letters is None else self.letters(x), self.words(x)]
            found = [part for part in parts if type(part) == torch.Tensor]  # noqa: E721 — as scripts have it
            return self.head(torch.cat(found, 1)), *parts

    @functools.singledispatch
    def weighed(part):
        return 0.0

    @weighed.register
    def _(part: torch.Tensor):
        return part.pow(2).mean()

    model = Parts()
    optimizer = SGD(model.parameters(), 0.05)
    said = []
    for x, y in DataLoader(TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,))), 8):
        logits, *parts = model(x)
        loss = F.cross_entropy(logits, y) + sum(weighed(part) for part in parts)
        # by which libraries look up what computes with it: opt_einsum, autoray
        said += [float(type(part).__module__ == "torch") for part in (x, logits, loss)]
        said += [
            str(type(loss)) == "<class 'torch.Tensor'>",
            type(x).__name__ == "Tensor",
            type(x) in (torch.Tensor, list),
        ]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


def losses_over_the_number_of_rows():
    counted = fitted(lambda net, logits, hidden, x, y: F.cross_entropy(logits, y, reduction="sum") / y.size(0))
    added = fitted(lambda net, logits, hidden, x, y: F.mse_loss(logits, x[:, :3]) + 0.01 * len(x))
    return counted + added


class Bayes(nn.Module):
    """Weights that are drawn, and what they differ from their prior by."""

    def __init__(self):
        super().__init__()
        self.mean, self.rho = nn.Parameter(torch.randn(3, 4) * 0.3), nn.Parameter(torch.full((3, 4), -2.0))
        self.register_buffer("last", torch.zeros(3, 4))

    def forward(self, x):
        drawn = torch.randn_like(self.mean)
        weight = self.mean + F.softplus(self.rho) * drawn
        return x @ weight.t(), (weight.pow(2) / 2 - drawn.pow(2) / 2).sum()


class Noisy(Bayes):
    """Noise that is kept in a buffer, as a noisy net of reinforcement learning does."""

    def forward(self, x):
        self.last.normal_()
        return x @ (self.mean + self.rho.exp() * self.last).t(), self.mean.sum()


class Keeps(Bayes):
    def forward(self, x):
        self.penalty = (self.mean * torch.randn(())).sum()
        return x @ self.mean.t(), self.rho.mean()


def learn_drawn(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        out, drawn = model(x)
        loss = F.cross_entropy(out, y) + 0.01 * drawn + 0.01 * getattr(model, "penalty", 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), drawn.item(), *[v.sum().item() for v in model.state_dict().values()]]
    return said


def weights_that_are_drawn():
    return learn_drawn(Bayes())


def noise_in_a_buffer():
    return learn_drawn(Noisy())


def a_drawn_attribute():
    return learn_drawn(Keeps())


class OfATable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Parameter(torch.randn(3, 6)), nn.BatchNorm1d(6)
        self.body = nn.Linear(4, 6)

    def forward(self, x):
        return self.body(x) @ self.norm(self.table).t()


def a_table_that_is_normalized():
    model = OfATable()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), *[v.double().sum().item() for v in model.state_dict().values()]]
    return said


def packed_sequences_with_other_data():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.last = nn.GRU(1, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True, enforce_sorted=False)
            return self.last(self.rnn(packed._replace(data=packed.data * 2))[1][-1])

    model = Net()
    optimizer = SGD(model.parameters(), 0.3)
    return loop(model, lambda x, y: descend(F.cross_entropy(model(x, y + 1), y), optimizer), optimizer)


def rows_that_are_picked_in_an_order_that_numpy_turned():
    said = []
    for x, y in data():
        rows = torch.arange(len(x))
        rows.numpy()[:] = rows.numpy()[::-1].copy()
        said += x[rows, y].tolist()
        said.append(F.cross_entropy(x[:, :3], y.byte(), torch.ones(3, dtype=x.dtype)).item())
        size, width = x.shape
        pairs = torch.cat([x[:, None].expand(size, size, width), x[None].expand(size, size, width)], 2)
        said += pairs.view(-1, 2 * width).std(1).tolist()
    return said


def rows_that_a_forward_and_its_loop_write_to():
    """A forward masks the first row, and the loop the last ones, of which one rank has none."""

    def end(net, logits, hidden, x, y):
        logits = logits * 2
        logits[0] = 0.5
        logits[2:4, 0] = -1.0
        return logits

    def loss(model, x, y):
        x = x * 1
        x[-1] = 0.25
        for row in range(len(x)):
            x[row, row % 2 :: 2] = 0.5
        out = model(x)
        out[:1] = 0.0
        return F.cross_entropy(out, y)

    return fit(Inside(end), loss)


# --- written in place through rows of what is returned ----------------------------------------------------------------


def written_last(write, epochs=3):
    """Train a net whose forward writes to rows of what it returns, as its last act."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor([0.5, 1.5, 2.5]))

        def forward(self, x):
            out = self.layer(x) * 1
            write(out, self.scale)
            return out

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for _ in range(epochs):
        for x, y in data(8):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            said += [loss.item(), *(parameter.grad.norm().item() for parameter in model.parameters())]
            optimizer.step()
    return said + state(model)


def second_half_is_scaled_in_place():
    return written_last(lambda out, scale: out[out.size(0) // 2 :].mul_(scale))


def one_row_is_written_in_place():
    def write(out, scale):
        out[0].copy_(scale)
        out[1].add_(scale)

    return written_last(write)


def two_halves_are_written_in_place():
    def write(out, scale):
        half = len(out) // 2
        out[:half].mul_(scale)
        out[half:].add_(scale)

    return written_last(write)


def rows_are_written_in_place_one_by_one():
    def write(out, scale):
        for row in range(len(out)):
            out[row].mul_(scale)

    return written_last(write)


def a_narrow_is_written_in_place():
    def write(out, scale):
        kept = out.narrow(0, 0, 3)
        kept.mul_(scale)

    return written_last(write)


def caches_that_begin_empty():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            kept = torch.cat([torch.tensor([]), self.layer(x)[:, None]], dim=-2)
            kept = torch.cat([kept, self.layer(2 * x)[:, None]], dim=-2)
            return self.last(kept.mean(1))

    torch.manual_seed(0)
    return fit(Net())


class PerSample(nn.Module):
    """Computes with a kernel for each image, side by side as channels."""

    def __init__(self, how):
        super().__init__()
        self.first, self.style, self.last = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3, 6), nn.LazyConv2d(2, 1)
        self.weight, self.how = nn.Parameter(torch.randn(1, 4, 3, 3, 3)), how
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x):
        h = self.first(x)
        return self.last(self.how(self, h, self.style(h.mean((2, 3))))).mean((2, 3))


def per_sample(how):
    torch.manual_seed(0)
    model = PerSample(how)
    model(torch.randn(2, 2, 6, 6))
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in DataLoader(TensorDataset(torch.randn(23, 2, 6, 6), torch.arange(23) % 2), 5):
        said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
    return said + everything(model)


def modulated(self, h, style, bias=False):
    b, c = h.shape[:2]
    weight = self.weight * style[:, :3].view(b, 1, c, 1, 1)
    weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8).view(b, 4, 1, 1, 1)
    return weight, (style[:, :4].reshape(-1) if bias else None)


def kernels_of_samples_as_groups():
    def how(self, h, style, bias=False):
        (weight, bias), (b, c, *space) = modulated(self, h, style, bias), h.shape
        out = F.conv2d(h.view(1, b * c, *space), weight.view(b * 4, c, 3, 3), bias, padding=1, groups=b)
        return out.view(b, 4, *space)

    def upsampled(self, h, style):
        (weight, _), (b, c, *space) = modulated(self, h, style), h.shape
        weight = weight.transpose(1, 2).reshape(b * c, 4, 3, 3)
        out = F.conv_transpose2d(h.reshape(1, b * c, *space), weight, stride=2, padding=0, groups=b)
        return out.view(b, 4, *out.shape[2:])

    def of_a_constant(self, h, style):
        (weight, _), (b, c, *space) = modulated(self, h, style), h.shape
        start = self.weight[0, 0, :, :1, :1].repeat(b, *space).view(1, b * c, *space)
        out = F.conv2d(start, weight.view(b * 4, c, 3, 3), padding=1, groups=b)
        return out.view(b, 4, *space)

    biased = per_sample(lambda self, h, style: how(self, h, style, True))
    return per_sample(how) + biased + per_sample(upsampled) + per_sample(of_a_constant)


class Queries(nn.Module):
    """Learned queries, repeated for each row, ask a decoder, as in DETR; a token is put in front, as in ViT."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 8), nn.Linear(8, 2), how
        self.queries, self.token = nn.Parameter(torch.randn(3, 8)), nn.Parameter(torch.randn(1, 1, 8))
        self.decoder = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x):
        memory = self.first(x)
        memory = torch.cat([self.token.expand(len(x), -1, -1), memory], 1)
        out = self.decoder(self.how(self.queries, memory), memory)
        codes = torch.zeros(len(out), 3).scatter_(1, out[:, :, 0].argmax(1, keepdim=True), 1.0)
        return self.last((out * codes[:, :, None]).sum(1) + codes @ self.queries)


def queries_that_are_repeated_for_each_row():
    ways = (
        lambda queries, memory: queries.unsqueeze(0).repeat(memory.size(0), 1, 1),
        lambda queries, memory: queries.expand(len(memory), -1, -1),
        lambda queries, memory: queries.tanh()[None].tile(memory.shape[0], 1, 1),
        lambda queries, memory: (queries * memory.mean()).broadcast_to(len(memory), 3, 8),
    )
    said = []
    for how in ways:
        torch.manual_seed(0)
        model = Queries(how)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in DataLoader(TensorDataset(torch.randn(23, 5, 4), torch.arange(23) % 2), 5):
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said += everything(model)
    return said


class ByLength(nn.Module):
    """Makes what has as many rows as the batch, by ``len``, and what happens to have."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(4, 5), nn.Parameter(torch.randn(5, 5))

    def forward(self, x):
        h = self.first(x)
        rows, square, flags = torch.zeros(len(x), 5), torch.zeros(5, 5), torch.ones(len(x), dtype=torch.bool)
        rows[:, 1:3] = h[:, :2]
        square[torch.arange(5), torch.arange(5)] = 2.0
        flags[h[:, 0] > 0] = False
        counts = torch.zeros(5)
        counts += h.detach().mean(0)
        h = h + F.linear(x, torch.full((5, 4), 0.1), torch.zeros(5))
        return (h + rows) @ (self.weight * square) + flags[:, None] * counts


def sizes_by_length():
    torch.manual_seed(0)
    model = ByLength()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for x, y in DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 5), 5):
        said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
    return said + everything(model)


class Quantized(nn.Module):
    """As quantization-aware training has it: what is rounded by the extremes of the batch."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.relu(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.head(x.mean((2, 3))))


def quantization_aware_training():
    torch.manual_seed(0)
    model = Quantized().train()
    fake = quantization.FakeQuantize.with_args(
        observer=quantization.MovingAverageMinMaxObserver, quant_min=0, quant_max=255
    )
    model.qconfig = quantization.QConfig(fake, quantization.default_per_channel_weight_fake_quant)
    quantization.fuse_modules_qat(model, [["conv", "norm", "relu"]], inplace=True)
    quantization.prepare_qat(model, inplace=True)
    optimizer, said = SGD(model.parameters(), 0.1), []
    for x, y in DataLoader(TensorDataset(torch.randn(23, 2, 6, 6), torch.arange(23) % 2), 5):
        said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
    model.apply(quantization.disable_observer)
    extremes = torch.aminmax(model(x))
    return [*said, *everything(model), extremes.min.item(), extremes.max.item(), *model(x).aminmax(dim=1)[0].tolist()]


class Tokens(nn.Module):
    """Hands feature maps on as tokens, so that gradients come to its norm in another order of memory."""

    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 1), norm, nn.Linear(24, 2)

    def forward(self, x):
        tokens = self.norm(self.conv(x)).flatten(2).permute(0, 2, 1)
        return self.last(tokens.reshape(len(x), -1))


def norms_of_single_rows_as_tokens():
    said = []
    for norm in (nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4).eval()):
        torch.manual_seed(0)
        model = Tokens(norm)
        optimizer = SGD(model.parameters(), 0.1)
        for rows in (4, 2, 3, 4, 5, 6, 2, 3):
            for x, y in DataLoader(TensorDataset(torch.randn(rows, 3, 3, 2), torch.arange(rows) % 2), rows):
                said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said += everything(model)
    return said


class DropsShared(nn.Module):
    """Drops entries of what all rows have alike, which one process drops once for all of them."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 4), nn.Linear(4, 2), kind
        self.shared, self.drop = nn.Parameter(torch.randn(1, 3, 4)), nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.recurrent = nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        its = self.shared
        if self.kind == "layer":
            its = self.drop(its)
        elif self.kind == "attention":
            its = self.attention(its, its, its)[0]
        elif self.kind == "recurrent":
            its = self.recurrent(its)[0]
        else:
            its = its @ torch.randn(4, 4)
        return self.last(self.first(x) + its.mean(1))


def drops_of_what_all_rows_share():
    said = []
    for kind in ("layer", "attention", "recurrent", "noise"):
        torch.manual_seed(0)
        model = DropsShared(kind)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in DataLoader(TensorDataset(torch.randn(24, 4), torch.arange(24) % 2), 8):
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said += [*everything(model), torch.rand(()).item()]
    return said


class TimeMajor(nn.Module):
    """Writes steps of time into what it made for all of them, as SRU does: each may have a dimension of 1 in front."""

    def __init__(self, leading):
        super().__init__()
        self.first, self.last, self.leading = nn.Linear(5, 8), nn.Linear(8, 2), leading

    def forward(self, x):
        u = self.first(x.transpose(0, 1))
        length, batch, _ = u.shape
        states = u.new_zeros(length, batch, 2, 4)
        state = u.new_zeros(batch, 4)
        for t in range(length):
            state = 0.5 * state + (u.chunk(length)[t] if self.leading else u[t]).view(-1, batch, 2, 4)[:, :, 1]
            states[t, :, t % 2, :] = state.tanh() if self.leading else state[0].tanh()
        return self.last(states.view(length, batch, -1)[-1])


def steps_of_time_that_are_written():
    said = []
    for leading in (False, True):
        torch.manual_seed(0)
        model = TimeMajor(leading)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in DataLoader(TensorDataset(torch.randn(23, 6, 5), torch.arange(23) % 2), 5):
            said.append(descend(F.cross_entropy(model(x), y), optimizer).item())
        said += everything(model)
    return said


def kernels_of_samples_for_each_channel():
    def how(self, h, style):
        b, c = h.shape[:2]
        out = F.conv2d(h.reshape(1, b * c, 6, 6), h[:, :, :3, :3].reshape(b * c, 1, 3, 3), groups=b * c)
        return out.view(b, c, out.size(2), out.size(3))

    return per_sample(how)


def kernels_of_samples_that_meet_others():
    def shared(self, h, style):  # one kernel for all, in groups of channels of a sample
        b, c = h.shape[:2]
        return F.conv2d(h.reshape(1, b * c, 6, 6), self.weight[0, :3, :1].repeat(b, 1, 1, 1), groups=b * c).view(
            b, c, 4, 4
        )

    def pairs(self, h, style):  # groups of channels that are those of two samples
        b, c = h.shape[:2]
        if b % 2:
            return h
        weight = style[:, :3].reshape(b * c, 1, 1, 1).expand(b * c, 2 * c, 3, 3)
        return F.conv2d(h.reshape(1, b * c, 6, 6), weight, groups=b // 2).view(b, c, 4, 4)

    return per_sample(shared) + per_sample(pairs)


def norms_of_samples_as_channels():
    def how(self, h, style, keeps=True):
        b, c = h.shape[:2]
        mean, var = (self.mean.repeat(b), self.var.repeat(b)) if keeps else (None, None)
        weight, bias = style[:, :3].contiguous().view(-1), style[:, 3:].contiguous().view(-1)
        out = F.batch_norm(h.reshape(1, b * c, 6, 6), mean, var, weight, bias, True, 0.1, 1e-5)
        told = 0.0 if mean is None else mean.view(b, c).mean(0).detach().view(1, c, 1, 1)
        return out.view(b, c, 6, 6) + told

    return per_sample(how) + per_sample(lambda self, h, style: how(self, h, style, False))


# --- distributions ----------------------------------------------------------------------------------------------------


def policies_and_posteriors():
    def end(net, logits, hidden, x, y):
        policy = distributions.Categorical(logits=logits)
        posterior = distributions.Independent(distributions.Normal(hidden, hidden.exp()), 1)
        prior = distributions.Independent(distributions.Normal(torch.zeros(6), torch.ones(6)), 1)
        kl = distributions.kl_divergence(posterior, prior)
        pixels = distributions.Bernoulli(logits=hidden).log_prob((x.sum(1, keepdim=True) > 0).double()).sum(1)
        return policy.log_prob(y) + 0.1 * policy.entropy() - 0.01 * kl + 0.1 * pixels + posterior.log_prob(hidden + 0.1)

    return fitted(end, lambda out: -out.mean())


def arguments_that_are_not_sound():
    def end(net, logits, hidden, x, y):
        scale = 1.0 - net.factor * logits.square()  # torch.compile, in an earlier habit, turns validation off for all
        return distributions.Normal(logits, scale, validate_args=True).log_prob(torch.zeros(3))

    def take(out):
        return -out.mean()

    told, steps = [], iter(range(1000))

    def before(model, step):
        model.factor = 0.0 if next(steps) % 3 else 1e9

    def loss(model, x, y):
        try:
            return take(model(x, y))
        except ValueError:  # of all rows
            told.append(len(x))
            return sum(p.sum() for p in model.parameters())

    return fit(Inside(end), loss, before) + told


class MadeOfParameters(nn.Module):
    """Rows meet what is made of parameters alone, of one row or of as many as the batch has, and the script gets it."""

    def __init__(self, rows):
        super().__init__()
        self.offsets, self.last = nn.Parameter(torch.arange(6.0 * rows).view(rows, 6).sin()), nn.Linear(6, 3)
        self.first = nn.Linear(4, 6)

    def forward(self, x):
        self.seen = x.median().item()  # so it runs on batches
        made = self.offsets[: len(x)].tanh()
        self.kept = made * 2
        return self.last(self.first(x) + made + self.kept[:1]), made


def looked_at(look):
    """Look at gradients there, from the first step on.

    Args:
        look: a generator, of the model, what it made and what is told: it is sent a loss, gives what is to be trained,
            and goes on after the step.
    """
    said = []
    for rows in (1, 8):
        torch.manual_seed(0)
        model = MadeOfParameters(rows)
        optimizer = SGD(model.parameters(), 0.3)
        for x, y in data(8):
            logits, made = model(x)
            told = []
            looking = look(model, made, told)
            next(looking)
            said.append(descend(looking.send(F.cross_entropy(logits, y)), optimizer).item())
            next(looking, None)
            said += [number for grad in told for number in grad.flatten().tolist()]
        said += everything(model)
    return said


def gradients_asked_for_of_what_is_made_of_parameters():
    def look(model, made, told):
        loss = yield
        told += torch.autograd.grad(loss, [made, model.kept], retain_graph=True)
        yield loss

    return looked_at(look)


def gradients_kept_of_what_is_made_of_parameters():
    def look(model, made, told):
        made.retain_grad()
        model.kept.retain_grad()
        yield (yield)
        told += [made.grad, model.kept.grad]

    return looked_at(look)


def gradients_changed_of_what_is_made_of_parameters():
    def look(model, made, told):
        for tensor in (made, model.kept):
            tensor.register_hook(lambda grad: told.append(grad) or grad.clamp(-0.01, 0.02))
        yield (yield)

    return looked_at(look)


def a_penalty_on_gradients_of_what_is_made_of_parameters():
    def look(model, made, told):
        loss = yield
        (grad,) = torch.autograd.grad(loss, made, create_graph=True)
        yield loss + grad.square().sum()

    return looked_at(look)


class Branching(nn.Module):
    """Layers of one input and of two, and one whose output is a tuple."""

    def __init__(self):
        super().__init__()
        self.first, self.bilinear, self.pair, self.head = nn.Linear(4, 6), nn.Bilinear(6, 6, 6), Pair(), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.relu(self.first(x))
        one, two = self.pair(self.bilinear(h, torch.sin(h)))
        return self.head(one * two)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x), x + 1


def with_full_backward_hooks(hook, before=None, names=("first", "bilinear", "pair", "head"), joins=False):
    torch.manual_seed(1)
    model = Branching()
    optimizer = SGD(model.parameters(), 0.1)
    said = []
    for name in names:
        layer = getattr(model, name)
        layer.register_full_backward_hook(functools.partial(hook, said, name))
        if before is not None:
            layer.register_full_backward_pre_hook(functools.partial(before, said, name))
    for x, y in data():
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out - out.mean(0) if joins else out, y).backward()
        optimizer.step()
    return [*said, *everything(model)]


def norms(said, name, layer, into, out):
    said += [0.0 if grad is None else grad.norm().item() for grad in (*into, *out)]


def full_backward_hooks_on_all_layers():
    return with_full_backward_hooks(norms) + with_full_backward_hooks(norms, joins=True)


def full_backward_hooks_that_change_gradients():
    def scaled(said, name, layer, into, out):
        said.append(float(len(out)))
        if name != "first":
            return tuple(grad * 0.5 for grad in into)

    def centred(said, name, layer, into, out):
        if name == "pair":
            return tuple(grad - grad.mean(0) for grad in into)

    return with_full_backward_hooks(scaled) + with_full_backward_hooks(centred)


def full_backward_pre_hooks_that_change_gradients():
    def clamped(said, name, layer, out):
        return tuple(grad.clamp(-0.02, 0.02) for grad in out)

    return with_full_backward_hooks(norms, clamped)


def full_backward_hooks_that_write_in_place():
    def clamped(said, name, layer, into, out):
        if name != "first":
            into[0].clamp_(min=0)

    def halved(said, name, layer, into, out):
        return tuple(grad if grad is None else grad.mul_(0.5) for grad in into)

    def zeroed(said, name, layer, out):
        out[0][:2] = 0

    def by_numpy(said, name, layer, into, out):
        if name != "first":
            into[0].numpy()[:, 1] = 0

    return [
        v
        for hook in (clamped, halved, by_numpy)
        for v in with_full_backward_hooks(hook) + with_full_backward_hooks(hook, zeroed)
    ]


def hooks_of_tensors_that_write_in_place():
    def halved(grad):
        grad.mul_(0.5)

    def zeroed(grad):
        grad[:2] = 0
        grad.clamp_(max=0.01)

    def by_numpy(grad):
        grad.numpy()[1:] *= 0.5

    class Hooked(Branching):
        def __init__(self, hook, inside):
            super().__init__()
            self.hook, self.inside = hook, inside

        def forward(self, x):
            out = super().forward(x)
            if self.inside:
                out.register_hook(self.hook)
            return out.tanh()

    said = []
    for hook in (halved, zeroed, by_numpy):
        for inside in (True, False):
            torch.manual_seed(0)
            model = Hooked(hook, inside)
            optimizer = SGD(model.parameters(), 0.1)
            for x, y in data():
                out = model(x)
                if not inside:
                    out.register_hook(hook)
                said.append(descend(F.cross_entropy(out, y), optimizer).item())
            said += everything(model)
    return said


def a_full_backward_hook_on_all_modules():
    said = []
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda layer, into, out: said.append(out[0].norm().item())
    )
    try:
        return fit(Branching()) + said
    finally:
        handle.remove()


def full_backward_hooks_that_keep_gradients():
    kept = {}

    def keep(said, name, layer, into, out):
        kept[name] = out[0].detach().clone()
        if len(kept) == 4:
            said += [grad.abs().max().item() for grad in kept.values()] + kept["head"][0].tolist()

    return with_full_backward_hooks(keep)


def full_backward_hooks_in_a_loader_of_odd_sizes():
    return with_full_backward_hooks(norms, names=("head",)) + with_full_backward_hooks(norms, names=("first",))


def class_activation_maps():
    """As Grad-CAM makes them: activations weighted by the mean gradient of one class."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    optimizer = SGD(model.parameters(), 0.001)
    kept, said = {}, []
    model[2].register_forward_hook(lambda layer, args, out: kept.__setitem__("out", out))
    model[2].register_full_backward_hook(lambda layer, into, out: kept.__setitem__("grad", out[0]))
    for x, y in data(batch_size=6):
        images = x.repeat(1, 9).view(-1, 1, 6, 6) * torch.linspace(0.5, 1.5, 36).view(1, 1, 6, 6)
        scores = model(images)
        model.zero_grad()
        scores[torch.arange(len(y)), y].sum().backward()
        maps = torch.relu((kept["grad"].mean((2, 3), keepdim=True) * kept["out"]).sum(1))
        said += maps.detach().flatten(1).sum(1).tolist()
        optimizer.step()
    return said + everything(model)


def pools_whose_samples_are_given():
    """A number of each row that the pool holds itself: a trial may find those of the first rank's rows right."""
    torch.manual_seed(1)
    said = []
    for pool, shape in (
        (nn.FractionalMaxPool3d(2, output_size=(3, 3, 3), _random_samples=torch.rand(4, 2, 3)), (2, 5, 5, 5)),
        (nn.FractionalMaxPool2d(2, output_size=(3, 3), _random_samples=torch.rand(4, 2, 2)), (2, 5, 5)),
    ):
        model = nn.Sequential(nn.Linear(5, 5), pool)
        optimizer = SGD(model.parameters(), 0.05)
        for x in DataLoader(torch.randn(12, *shape), batch_size=4):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        said += everything(model)
    return said
