"""Models of every shape: what goes in, what comes out, what they keep, and what torch makes of them."""

import collections
import copy
import dataclasses
import io

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.gradient_habits import descend, everything, loop, trained
from parity.habits import data, mlp
from torch.optim import SGD


class Tagger(nn.Module):
    """Sequence first: ``[T, B, F] -> [T, B, C]`` and states ``[L, B, H]``."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 5, num_layers=2)
        self.head = nn.Linear(5, 3)

    def forward(self, x, state=None):
        out, state = self.rnn(x, state)
        return self.head(out), state


def sequence_first():
    model = Tagger()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out, (h, c) = model(x.t().unsqueeze(2))
        loss = F.cross_entropy(out[-1], y) + h.pow(2).mean() + c[0].abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def states_from_zeros():
    model = Tagger()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        zeros = torch.zeros(2, len(x), 5), torch.zeros(2, len(x), 5)
        out, state = model(x.t().unsqueeze(2), zeros)
        out, _ = model(x.t().unsqueeze(2), tuple(s.detach() for s in state))
        loss = F.cross_entropy(out.mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def states_carried_between_batches():
    model = nn.GRU(4, 3, batch_first=True)
    optimizer = SGD(model.parameters(), 0.3)
    held = {}

    def step(x, y):
        state = held.get(len(x))
        out, state = model(x.unsqueeze(1), state)
        held[len(x)] = state.detach()
        loss = F.cross_entropy(out[:, -1], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.look = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x, causal, padding=None):
        x = x.unsqueeze(1) + torch.linspace(0, 1, 5)[None, :, None]
        z = self.encoder(x, mask=causal, src_key_padding_mask=padding)
        z, weights = self.look(z, z, z)
        return self.head(z.mean(1)), weights


def attention_with_masks():
    model = Attention()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    causal = torch.triu(torch.full((5, 5), float("-inf")), diagonal=1)

    def step(x, y):
        padding = torch.zeros(len(x), 5)
        padding[:, 4] = float("-inf")
        out, weights = model(x, causal, padding=padding)
        loss = F.cross_entropy(out, y) + weights.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: dict


class ModelOutput(collections.OrderedDict):
    """Like transformers': items as attributes and by position."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, pair, *, options, scale=None, names=(), extra=None):
        x = pair.left * options["gain"] + pair.right[0] + (0 if extra is None else extra["shift"])
        logits = self.net(x) * (1 if scale is None else scale) / self.temperature
        out = ModelOutput(logits=logits, temperature=self.temperature, names=list(names))
        return Output(logits, {"out": out, "classes": logits.argmax(1), "none": None})


def structures_in_and_out():
    model = nn.DataParallel(Structured())
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        out = model(Pair(x, [x * 0.1, "text"]), options={"gain": 0.5}, scale=2.0, names=("a",), extra={"shift": x})
        held = out.extra["out"]
        loss = F.cross_entropy(held.logits, y) + 0.1 * held["temperature"] ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss + (out.extra["classes"] == y).sum() + len(held[2])

    return loop(model, step, optimizer)


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, y=None):
        logits = self.net(x)
        if y is None:
            return logits
        return F.cross_entropy(logits, y), logits


def loss_and_logits_from_forward():
    model = WithLoss()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss, logits = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            said = (model(x).argmax(1) == y).float().mean()
        model.train()
        return loss + said + logits.detach().std()

    return loop(model, step, optimizer)


def plain_tensors_in():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        noise = torch.randn(len(x), 4)
        loss = F.cross_entropy(model(noise), y) + model(torch.ones(3, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    torch.manual_seed(3)
    return loop(model, step, optimizer)


class Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.kept = None

    def forward(self, x):
        self.kept = self.net[1](self.net[0](x))
        return self.net[2](self.kept)


def activations_kept_on_the_module():
    model = Keeper()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        loss = F.cross_entropy(model(x), y) + model.kept.std(0).mean() + model.kept.shape[0] / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


class Codebook(nn.Module):
    """Buffers that follow the batch, as vector quantisation and batch renormalisation have them."""

    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.count += len(x)
        return self.net(x - self.mean)


def buffers_that_follow_the_batch():
    model = Codebook()
    optimizer = SGD(model.parameters(), 0.3)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def compiled_models():
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    optimizer = SGD(compiled.parameters(), 0.3, momentum=0.9)
    said = loop(compiled, lambda x, y: trained(compiled, optimizer, x, y), optimizer, epochs=1)
    other = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    other.compile(backend="eager")
    optimizer = SGD(other.parameters(), 0.1, momentum=0.9)
    return said + loop(other, lambda x, y: trained(other, optimizer, x, y), optimizer, epochs=1)


def compiled_loss():
    model = mlp()
    optimizer = SGD(model.parameters(), 0.3)

    @torch.compile(backend="eager")
    def criterion(out, y):
        return F.cross_entropy(out, y) + out.pow(2).mean()

    def step(x, y):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer)


def scripted_models():
    model = torch.jit.script(mlp())
    optimizer = SGD(model.parameters(), 0.3)
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)
    other = torch.jit.script(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)))
    optimizer = SGD(other.parameters(), 0.1)
    return said + loop(other, lambda x, y: trained(other, optimizer, x, y), optimizer)


def traced_model():
    model = torch.jit.trace(mlp(), torch.zeros(2, 4))
    optimizer = SGD(model.parameters(), 0.3)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def saved_and_loaded_between():
    # No bias before BatchNorm: its gradient is rounding, which Adam would blow up to a step.
    body = [nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 3)]
    model = nn.DataParallel(nn.Sequential(*body))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    said = loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    held = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "whole": model.module}, held)
    held.seek(0)
    saved = torch.load(held, weights_only=False)
    said += loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    said += loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer, epochs=1)
    other = nn.DataParallel(saved["whole"])
    optimizer = torch.optim.Adam(other.parameters(), 0.05)
    return said + loop(other, lambda x, y: trained(other, optimizer, x, y), optimizer, epochs=1)


def frozen_in_data_parallel():
    body = nn.DataParallel(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).requires_grad_(False))
    head = nn.Linear(6, 3)
    optimizer = SGD(head.parameters(), 0.3)

    def step(x, y):
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(head(body(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss + x.grad.norm()

    return loop(head, step, optimizer) + [v.double().sum().item() for v in body.state_dict().values()]


def autocast():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).float()
    optimizer = SGD(model.parameters(), 0.1)
    precise = copy.deepcopy(model).double()
    kinds = []

    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x.float())
            loss = F.cross_entropy(out, y)
        kinds.append([out.dtype, loss.dtype] == [torch.bfloat16, torch.float32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    said = loop(model, step, optimizer, epochs=1)
    optimizer = SGD(precise.parameters(), 0.1)
    wanted = loop(precise, lambda x, y: trained(precise, optimizer, x, y), epochs=1)
    return [sum(kinds), sum(abs(a - b) < 0.03 for a, b in zip(said[:3], wanted[:3], strict=True))]


def one_row_and_none():
    """Batches of one row, and modules that take no batch at all."""
    model = mlp()
    table = nn.Embedding(3, 3)
    optimizer = SGD([*model.parameters(), *table.parameters()], 0.3)

    def step(x, y):
        prior = table(torch.arange(3)).mean(0)
        loss = F.cross_entropy(model(x) + prior, y) + F.cross_entropy(model(x[:1]), y[:1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return loop(model, step, optimizer, batch_size=7)


def without_a_loader():
    """Whole tensors reach the model: read, indexed, short, one-dimensional, of several sizes, as a graph."""
    x, y = torch.randn(13, 4), torch.randint(0, 3, (13,))
    model, words, head = mlp(), nn.Embedding(9, 4), nn.Linear(4, 3)
    optimizer = SGD([*model.parameters(), *words.parameters(), *head.parameters()], 0.1)
    said = []
    for chosen in (*torch.randperm(13).split(5), torch.arange(1), torch.arange(2)):
        out = model(x[chosen])
        loss = F.cross_entropy(out, y[chosen])
        said += [loss.item(), *out.detach().numpy().ravel().tolist(), *out[0].tolist(), float(out.max()), len(out)]
        texts = words(y[chosen])
        loss = loss + F.mse_loss(head(texts), out.detach()) + out[-1].sum() * 0.1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            said += model(x).argmax(1).tolist() + model(x[0]).tolist()
    return said


def under_transforms():
    """``torch.func`` over the model, between steps."""
    x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)

    def loss_of(weights, row, label):
        return F.cross_entropy(torch.func.functional_call(model, weights, (row.unsqueeze(0),)), label.unsqueeze(0))

    said = []
    for _ in range(3):
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
        said += [value.pow(2).sum().item() for value in each.values()]
        said += [torch.func.vmap(model)(torch.stack([x, 2 * x])).sum().item()]
        said += [torch.func.vmap(torch.func.jacrev(model))(x).pow(2).sum().item()]
        said += [torch.autograd.functional.hessian(lambda given: model(given).sum(), x).pow(2).sum().item()]
        inputs = x.clone().requires_grad_()
        loss = F.cross_entropy(model(inputs), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), inputs.grad.pow(2).sum().item()]
    return said


def transforms_of_what_was_written_in_part():
    """What was written through slices and rows of outputs is there where ``vmap`` looks first."""
    model, said = mlp(), []
    for x, _ in data():
        for write in (lambda h: h[1:].mul_(0.5), lambda h: h[0].fill_(1), lambda h: h[:, 0].add_(1)):
            hidden = model(x) * 1
            write(hidden)
            model.zero_grad()
            torch.func.vmap(torch.sin)(hidden).sum().backward()
            said += [hidden.sum().item(), *[parameter.grad.sum().item() for parameter in model.parameters()]]
    return said


class Graph(nn.Module):
    """Every node sees its neighbours."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x, adjacent):
        return self.second(adjacent @ F.relu(adjacent @ self.first(x)))


def a_graph_in_memory():
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    adjacent = F.softmax(torch.randn(10, 10), 1)
    model = Graph()
    optimizer = SGD(model.parameters(), 0.3)
    said = []
    for _ in range(4):
        out = model(x, adjacent)
        loss = F.cross_entropy(out[:6], y[:6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), (out.argmax(1) == y)[6:].sum().item()]
    return said


def a_sparse_graph_in_memory():
    """As GCNs have it: the adjacency matrix is sparse."""
    x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    adjacent = (torch.rand(10, 10) < 0.4).double().to_sparse()
    first, second = nn.Linear(4, 6), nn.Linear(6, 3)

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x, adjacent):
            return self.second(torch.spmm(adjacent, F.relu(torch.sparse.mm(adjacent, self.first(x)))))

    model = Sparse()
    optimizer = SGD(model.parameters(), 0.01)
    said = []
    for _ in range(3):
        loss = F.cross_entropy(model(x, adjacent)[:6], y[:6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


class Skips(nn.Module):
    """Leaves a layer out by chance, all rows or none, as LayerDrop does."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.first(x)
        if torch.rand(()) < 0.5:
            x = self.norm(x)
        return self.head(x)


def a_layer_that_is_left_out_by_chance():
    model = Skips()
    optimizer = SGD(model.parameters(), 0.1)
    return loop(model, lambda x, y: trained(model, optimizer, x, y), optimizer)


def physics_informed():
    """Derivatives of the output by the input, which the loss is made of."""
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    said = []
    for _ in range(4):
        x = torch.rand(11, 1, requires_grad=True)
        t = torch.rand(11, 1, requires_grad=True)
        u = model(torch.cat([x, t], 1))
        by_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
        by_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        twice = torch.autograd.grad(by_x, x, torch.ones_like(by_x), create_graph=True)[0]
        edge = model(torch.zeros(3, 2))
        loss = (by_t - 0.1 * twice).pow(2).mean() + edge.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), by_x.abs().sum().item()]
    return said


def policy_gradient():
    """Single states are acted upon, and a whole episode is learned from."""
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(policy.parameters(), 0.05)
    said = []
    for _ in range(3):
        state, states, actions, kept = torch.zeros(4), [], [], []
        for _ in range(7):
            chances = torch.distributions.Categorical(logits=policy(state.unsqueeze(0)))
            action = chances.sample()
            kept.append(chances.log_prob(action))
            states.append(state)
            actions.append(action.item())
            state = torch.roll(state, 1) + torch.tensor([action.item() - 0.5, 0.1, 0.0, 0.0])
        rewards = torch.linspace(1, 2, 7)
        again = torch.distributions.Categorical(logits=policy(torch.stack(states)))
        loss = -(torch.cat(kept) * rewards).sum() - 0.01 * again.entropy().mean()
        loss = loss - again.log_prob(torch.tensor(actions)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), *actions]
    return said


def trained_models_that_are_stacked():
    models = [mlp() for _ in range(3)]
    optimizers = [SGD(model.parameters(), 0.1) for model in models]
    for x, y in data():
        for model, optimizer in zip(models, optimizers, strict=True):
            descend(F.cross_entropy(model(x), y), optimizer)
    weights, buffers = torch.func.stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def out(its, held, x):
        return torch.func.functional_call(skeleton, (its, held), (x,))

    x = torch.linspace(-1, 1, 12).view(3, 4)
    return torch.func.vmap(out, (0, 0, None))(weights, buffers, x).flatten().tolist()


def transforms_of_batches():
    """``torch.func`` over what a loader gives, and over batches that the transformed function closes over."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.1)
    others, _ = torch.func.stack_module_state([mlp() for _ in range(3)])
    skeleton = copy.deepcopy(model).to("meta")
    trains_others = SGD(others.values(), 0.1)
    said = []
    for x, y in data():

        def loss_of(weights, x=x, y=y):
            return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

        weights = dict(model.named_parameters())
        gradients = torch.func.grad(loss_of)(weights)
        fast = {name: weights[name] - 0.1 * gradient for name, gradient in gradients.items()}
        slopes = torch.func.vmap(torch.func.jacrev(model))(x)
        each = torch.func.vmap(lambda own, x=x: torch.func.functional_call(skeleton, own, (x,)))(others)
        loss = loss_of(fast) + slopes.pow(2).mean() + F.cross_entropy(torch.func.vmap(model)(x), y)
        said.append(float(descend(loss, optimizer)))
        said.append(float(descend(F.cross_entropy(each.flatten(0, 1), y.repeat(3)), trains_others)))
        ones = torch.ones_like(x)
        said += [float(F.cross_entropy(slope, y)) for slope in slopes.unbind(-1)]
        said.append(float(torch.func.jvp(model, (x,), (ones,))[1].pow(2).sum()))
        said.append(float(torch.func.vjp(model, x)[1](torch.ones(len(x), 3))[0].pow(2).sum()))
        said.append(float(torch.func.linearize(model, x)[1](ones).pow(2).sum()))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, ones)
            said.append(float(torch.autograd.forward_ad.unpack_dual(model(dual)).tangent.pow(2).sum()))
    return said + everything(model) + [value.sum().item() for value in others.values()]


def forward_over_reverse():
    """Products of the Hessian with a direction in the inputs, amid the training."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.2)
    said = []
    for x, y in data():
        said.append(float(descend(F.cross_entropy(model(x), y), optimizer)))
        with torch.autograd.forward_ad.dual_level():
            loss = F.cross_entropy(model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))), y)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            tangents = [torch.autograd.forward_ad.unpack_dual(gradient).tangent for gradient in gradients]
        said += [float(tangent.pow(2).sum()) for tangent in tangents]
    return said


class Lazily(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.LazyLinear(6), nn.LazyBatchNorm1d(), nn.LazyLinear(3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def transforms_that_nothing_was_gathered_for():
    """Batches that nobody has looked at as a whole before, and losses that nobody has asked for."""
    model, weight = mlp(), torch.linspace(-1, 1, 12).view(4, 3)
    said = []

    def fresh():
        return next(iter(data()))

    x, _ = fresh()
    said.append(float(torch.func.linearize(model, x)[1](torch.ones(8, 4)).pow(2).sum()))
    x, _ = fresh()
    said.append(float(torch.func.linearize(lambda w: ((x * 2) @ w).pow(2).sum(), weight)[1](weight)))
    x, _ = fresh()
    said.append(float(torch.func.vjp(model, x)[1](x[:, :3] * 2)[0].pow(2).sum()))
    x, _ = fresh()
    said.append(
        float(torch.autograd.grad(model(torch.ones(8, 4)).sum(1), model[0].bias, grad_outputs=x[:, 0])[0].sum())
    )
    x, y = fresh()
    loss = F.cross_entropy(model(x), y)
    said.append(float(torch.func.grad(lambda w, s: (w * s).sum())(weight, loss).sum()))
    loss = F.cross_entropy(model(x), y)
    said.append(float(torch.func.vjp(lambda w: w.pow(2).sum() + loss, weight)[0]))
    x, _ = fresh()
    x.requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))).pow(2).sum().backward()
        said.append(float(x.grad.pow(2).sum()))
    x, _ = fresh()
    said.append(float(torch.func.grad(lambda w: (Doubled.apply(x) @ w).pow(2).sum())(weight).sum()))
    return said


def lazy_layers():
    """Their first data are the training's."""
    said = []
    for model in (Lazily(), nn.LazyLinear(3)):
        optimizer = SGD(model.parameters(), 0.2)
        said += [float(descend(F.cross_entropy(model(x), y), optimizer)) for x, y in data()]
        said += [*everything(model), len(repr(model))]
    grown = mlp()
    for _ in range(2):
        optimizer = SGD(grown.parameters(), 0.2)
        said += [float(descend(F.cross_entropy(grown(x), y), optimizer)) for x, y in data()]
        grown[2] = nn.LazyLinear(3)
    return said


class Centred(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


def another_class():
    """A model gets another class amid the training, from the script and from torch's parametrizations."""
    model = nn.Linear(4, 3)
    said = []

    def train():
        optimizer = SGD(model.parameters(), 0.2)
        said.extend(float(descend(F.cross_entropy(model(x), y), optimizer)) for x, y in data())
        said.append(len(repr(model)))

    train()
    model.__class__ = Centred
    train()
    model.__class__ = nn.Linear
    train()
    nn.utils.parametrizations.weight_norm(model)
    train()
    nn.utils.parametrize.remove_parametrizations(model, "weight")
    train()
    return said + everything(model)


def exported():
    """A trained model goes to torch.export, and is trained on."""
    model = mlp()
    optimizer = SGD(model.parameters(), 0.2)
    said = []
    for x, y in data():
        said.append(float(descend(F.cross_entropy(model(x), y), optimizer)))
        program = torch.export.export(model, (torch.ones(4, 4),))
        said.append(float(program.module()(torch.ones(4, 4)).sum()))
    return said + everything(model)


class Viewing(nn.Module):
    """Looks at states ``[L, B, H]`` in one piece."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 5, num_layers=2), nn.Linear(5, 3)

    def forward(self, x, states):
        assert all(state.is_contiguous() for state in states)
        out, (h, _) = self.rnn(x, states)
        return self.head(out[-1]) + h.view(2, -1, 5).sum(0)[:, :3]


def states_in_one_piece():
    model = Viewing()
    optimizer = SGD(model.parameters(), 0.3)

    def step(x, y):
        zeros = torch.zeros(2, len(x), 5), torch.zeros(2, len(x), 5)
        return descend(F.cross_entropy(model(x.t().unsqueeze(2), zeros), y), optimizer)

    return loop(model, step, optimizer)


# --- trained without an optimizer -------------------------------------------------------------------------------------


def small(classes):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, classes))


def down_by_hand():
    """As torch's tutorials write it: p -= rate * p.grad, with momentum and a learning rate that shrinks."""
    model, said = small(3), []
    moved = [torch.zeros_like(p) for p in model.parameters()]
    for epoch in range(3):
        for x, y in data(5):
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p, m in zip(model.parameters(), moved, strict=True):
                    m.mul_(0.9).add_(p.grad + 0.01 * p)
                    p -= 0.1 / (epoch + 1) * m
            said.append(loss.item())
        with torch.no_grad():
            said += [F.cross_entropy(model(x), y).item() for x, y in data(7)]
    return said + [v for p in model.parameters() for v in (p.sum().item(), p.grad.norm().item())]


def down_by_hand_without_a_loader():
    """As torch's example of a language model: clipped, and written to .data."""
    model, said = small(3), []
    for step in range(6):
        x, y = torch.randn(7 - step % 3, 4), torch.randint(3, (7 - step % 3,))
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        said += [loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 0.25).item()]
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
    return said + [p.sum().item() for p in model.parameters()]


def two_models_down_by_hand():
    """Adversaries, and a plain tensor beside them; gradients of two steps are kept."""
    makes, tells, scale = small(3), small(3), torch.ones(3, requires_grad=True)
    said = []
    for step, (x, y) in enumerate((x, y) for _ in range(3) for x, y in data(6)):
        for net, sign in ((tells, 1), (makes, -1)):
            made = makes(x) * scale
            loss = sign * F.cross_entropy(tells(torch.cat([made, made[:, :1]], 1)), y) + made.square().mean()
            loss.backward()
            said.append(loss.item())
            if step % 2:
                held = [*net.parameters(), scale]
                for p in held:
                    p.data = p.data - 0.05 * p.grad
                    p.grad = None
    return said + [t.sum().item() for t in (*makes.parameters(), *tells.parameters(), scale)]


def down_by_gradients_that_are_asked_for():
    """torch.autograd.grad, the sum of squares of which is a penalty."""
    model, said = small(3), []
    for x, y in (batch for _ in range(3) for batch in data(6)):
        loss = F.cross_entropy(model(x), y)
        weights = list(model.parameters())
        first = torch.autograd.grad(loss, weights, create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        grads = torch.autograd.grad(loss + 0.1 * penalty, weights)
        with torch.no_grad():
            for p, g in zip(weights, grads, strict=True):
                p.sub_(g, alpha=0.2)
        said += [loss.item(), penalty.item()]
    return said + [p.sum().item() for p in model.parameters()]


def explained_and_then_trained():
    """Gradients of inputs, from a model that nobody trains yet; one that steps by hand; and one with an optimizer."""
    model, said = small(3), []
    for x, _ in data(6):
        x.requires_grad_()
        model(x)[:, 0].sum().backward()
        said.append(x.grad.abs().sum().item())
    said += [p.grad.sum().item() for p in model.parameters()]
    for x, y in data(6):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in data(6):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said + [p.sum().item() for p in model.parameters()]


class Annotating(nn.Module):
    """Writes to what it is given, by each of the names that it has for it."""

    def __init__(self, centres):
        super().__init__()
        self.net, self.centres = mlp(), centres

    def forward(self, first, second, *, third):
        out = self.net(first["x"])
        first["out"] = out
        second["twice"] = first["out"] * 2
        third["sum"] = second["twice"] + first["out"]
        third["list"].append(out - out.mean(0) if self.centres else -out)
        return out, first is second, second is third


def one_dict_as_several_arguments():
    said = []
    for centres in (False, True):
        model = Annotating(centres)
        optimizer = SGD(model.parameters(), 0.1)
        for x, y in data(8):
            held = {"x": x, "list": []}
            out, *same = model(held, held, third=held)
            loss = F.cross_entropy(out, y) + held["twice"].pow(2).mean() + held["list"][0].mean()
            said += [descend(loss, optimizer).item(), *same, held["sum"].sum().item(), len(held["list"])]
    return said
