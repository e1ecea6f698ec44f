"""What scripts do with nn.DataParallel beside wrapping a classifier: its arguments, its outputs, its functions."""

import collections
import copy
import dataclasses
import functools
import io
import itertools
import types

import torch
import torch.nn as nn
import torch.nn.functional as F
from parity.habits import data, fit, mlp, state
from torch.nn.parallel import DataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)

Pair = collections.namedtuple("Pair", "x scale")


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "sample"


class Output(collections.OrderedDict):
    """As transformers' ModelOutput: a dict whose entries are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def train(model, loss_of, batches=data, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    said = []
    for _ in range(2):
        for batch in batches():
            loss = loss_of(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
    return said + state(model)


# --- arguments and outputs --------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Takes anything, says what it got."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x, *rest, y=None, mask=None, scale=1.0, names=(), options=None, sample=None):
        out = self.norm(self.layer(x)) * scale
        for item in rest:
            if isinstance(item, Pair):
                out = out + self.layer(item.x) * item.scale
            elif isinstance(item, dict):
                out = out + self.layer(item["deep"]["x"][0]) + (0 if item["none"] is None else 1)
            elif isinstance(item, (list, tuple)):
                out = out + sum(self.layer(tensor) for tensor in item)
        if mask is not None:
            out = out * mask[:, None]
        if sample is not None:
            out = out + self.layer(sample.x) + len(sample.name)
        if options is not None:
            out = out * options.gain
        losses = None if y is None else F.cross_entropy(out, y, reduction="none")
        return Output(logits=out, per_row=losses, nothing=None, parts=[out[:, 0], (out.tanh(), Pair(out * 2, None))])


def keyword_arguments():
    model = DataParallel(Net())

    def loss(x, y):
        out = model(x=x, y=y, mask=(y > 0).double() + 1, scale=0.5, names=("a", "b"), options=None)
        assert type(out) is Output
        assert out.nothing is None
        return out.per_row.mean() + out["logits"].pow(2).mean()

    return train(model, loss)


def nested_arguments():
    model = DataParallel(Net())

    def loss(x, y):
        options = types.SimpleNamespace(gain=1.5)
        nested = {"deep": {"x": [x * 2, "text"]}, "none": None}
        out = model(
            x, Pair(x, 0.5), nested, [x, -x / 2], (x,), None, 3, y=y, options=options, sample=Sample(x.tanh(), y)
        )
        inner, pair = out.parts[1]
        assert type(pair) is Pair
        assert pair.scale is None
        return out.per_row.mean() + inner.mean() + pair.x.pow(2).mean() + out.parts[0].sum() / 100

    return train(model, loss)


class Scaled(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 3), kind

    def forward(self, x, values):
        if self.kind == "zip":  # a list of one number per row, which DataParallel gives to every device whole
            return self.layer(x) * torch.tensor([float(value) for _, value in zip(x, values, strict=True)])[:, None]
        if self.kind == "first":
            return self.layer(x) * values[0]
        return self.layer(x) + self.layer(torch.stack([value.mean(0) for value in values]))


def lists_of_numbers():
    said = []
    for kind in ("zip", "first"):
        model = DataParallel(Scaled(kind))
        said += train(
            model, lambda x, y, model=model: F.cross_entropy(model(x, [1.0 + i / 10 for i in range(len(x))]), y)
        )
    return said


def lists_of_uneven_tensors():
    rows = [(torch.randn(1 + i % 3, 4), torch.randn(4), i % 3) for i in range(22)]

    def collate(samples):
        bags, x, y = zip(*samples, strict=True)
        return torch.stack(x), list(bags), torch.tensor(y)

    model = DataParallel(Scaled("stack"))
    return train(
        model, lambda x, bags, y: F.cross_entropy(model(x, bags), y), lambda: DataLoader(rows, 8, collate_fn=collate)
    )


class Bundle:
    """A batch as an object of the script's own, which DataParallel hands to every device as it is."""

    def __init__(self, x, y):
        self.x, self.y = x, y


class OfBundles(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, bundle, x=None):
        out = self.layer(bundle.x)
        return out if x is None else out + self.layer(x)


def objects_with_tensors():
    model = DataParallel(OfBundles())
    said = train(model, lambda x, y: F.cross_entropy(model(Bundle(x, y)), y))
    return said + train(model, lambda x, y: F.cross_entropy(model(Bundle(x, y), x), y))


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, hidden = self.rnn(packed)
        return self.head(hidden[-1])


def packed_sequences():
    model = DataParallel(Packed())
    dataset = TensorDataset(torch.randn(20, 4, 3), torch.arange(20) % 4 + 1, torch.arange(20) % 2)
    return train(
        model, lambda x, lengths, y: F.cross_entropy(model(x, lengths), y), lambda: DataLoader(dataset, batch_size=8)
    )


class AttrDict(dict):
    """The idiom of configurations and of many models' outputs: entries are attributes, and the other way round."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


@dataclasses.dataclass
class Required(collections.OrderedDict):
    """As ModelOutput, with a field that has no default."""

    logits: torch.Tensor
    extra: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class OfDicts(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 3), kind

    def forward(self, batch):
        return self.kind(logits=self.layer(batch if isinstance(batch, torch.Tensor) else batch.logits))


def dicts_with_attributes():
    said = []
    for kind, given in itertools.product((Output, AttrDict, Required), (True, False)):
        model = DataParallel(OfDicts(kind))

        def loss(model, kind, given, x, y):
            out = model(kind(logits=x) if given else x)
            assert type(out) is kind
            assert out.logits.shape == out["logits"].shape == (len(y), 3)
            return F.cross_entropy(out.logits, y) + out["logits"].pow(2).mean()

        said += train(model, functools.partial(loss, model, kind, given))
    return said


def no_arguments():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3))

        def forward(self, scale=1.0):
            return self.weight * scale

    model = DataParallel(Table())
    said = train(model, lambda x, y: F.cross_entropy(x @ model(), y))
    return said + train(model, lambda x, y: F.cross_entropy(x @ model(scale=0.5), y))


class LossAndLogits(nn.Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.layer, self.reduction = nn.Linear(4, 3), reduction

    def forward(self, x, y):
        out = self.layer(x)
        return F.cross_entropy(out, y, reduction=self.reduction), {"logits": out, "right": (out.argmax(1) == y).sum()}


def scalars_among_the_outputs():
    said = []

    def loss_of(model, x, y):
        value, rest = model(x, y)
        said.extend([value.dim(), rest["right"].item(), *rest["logits"].shape])
        return value.mean()

    for reduction in ("mean", "sum"):
        model = DataParallel(LossAndLogits(reduction))
        said += train(model, functools.partial(loss_of, model), lr=0.01)
    return said


# --- sequence first ---------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Sequence first, as PyTorch's recurrent layers want it: [T, B, F] to [T, B, C] and a state [1, B, H]."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 5), nn.Linear(5, 2)

    def forward(self, x, state=None):
        out, (hidden, cell) = self.rnn(x, state)
        return self.head(out), (hidden, cell)


def sequences(n=20, length=6):
    g = torch.Generator().manual_seed(4)
    return TensorDataset(torch.randn(n, length, 3, generator=g), torch.arange(n * length).view(n, length) % 2)


def sequence_first_by_transposing():
    model = DataParallel(Tagger(), dim=1)

    def loss(x, y):
        out, (hidden, _) = model(x.transpose(0, 1).contiguous())
        assert out.shape[:2] == (6, len(y))
        return F.cross_entropy(out.permute(1, 2, 0), y) + hidden.pow(2).mean()

    return train(model, loss, lambda: DataLoader(sequences(), 8))


def sequence_first_by_collate():
    model = DataParallel(Tagger(), dim=1)

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack(x, 1), torch.stack(y, 1)

    def loss(x, y):
        out, _ = model(x)
        return F.cross_entropy(out.flatten(0, 1), y.reshape(-1))

    return train(model, loss, lambda: DataLoader(sequences(), 8, collate_fn=collate))


def sequence_first_with_carried_states():
    model = DataParallel(Tagger(), dim=1)
    carried = None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in DataLoader(sequences(18), 6):
        carried = (torch.zeros(1, 6, 5), torch.zeros(1, 6, 5)) if carried is None else carried
        out, carried = model(x.transpose(0, 1), carried)
        carried = tuple(tensor.detach() for tensor in carried)
        loss = F.cross_entropy(out.permute(1, 2, 0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), carried[0].sum().item(), *carried[1].shape]
    return said + state(model)


def sequence_first_without_a_loader():
    model = DataParallel(Tagger(), dim=1)
    g = torch.Generator().manual_seed(4)
    batches = [(torch.randn(6, 8, 3, generator=g), torch.arange(48).view(8, 6) % 2) for _ in range(3)]
    return train(model, lambda x, y: F.cross_entropy(model(x)[0].permute(1, 2, 0), y), lambda: batches)


# --- subclasses, nesting, copies --------------------------------------------------------------------------------------


class CallsSuper(DataParallel):
    def forward(self, *inputs, **kwargs):
        return super().forward(*inputs, **kwargs) * 2


class AsTorch(DataParallel):
    """A copy of DataParallel.forward, as research code has it."""

    def forward(self, *inputs, **kwargs):
        if not self.device_ids:
            return self.module(*inputs, **kwargs)
        inputs, kwargs = self.scatter(inputs, kwargs, self.device_ids)
        if len(self.device_ids) == 1:
            return self.module(*inputs[0], **kwargs[0])
        replicas = self.replicate(self.module, self.device_ids[: len(inputs)])
        return self.gather(self.parallel_apply(replicas, inputs, kwargs), self.output_device)


class LikeMmcv(DataParallel):
    def __init__(self, *args, dim=0, **kwargs):
        super().__init__(*args, dim=dim, **kwargs)
        self.dim = dim

    def forward(self, *inputs, **kwargs):
        if not self.device_ids:
            inputs, kwargs = self.scatter(inputs, kwargs, [-1])
            return self.module(*inputs[0], **kwargs[0])
        return super().forward(*inputs, **kwargs)

    def scatter(self, inputs, kwargs, device_ids):
        return [tuple(item["data"] if isinstance(item, dict) else item for item in inputs)], [kwargs]

    def train_step(self, *inputs, **kwargs):
        inputs, kwargs = self.scatter(inputs, kwargs, self.device_ids or [-1])
        return self.module.train_step(*inputs[0], **kwargs[0])


class WithAttributes(DataParallel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Never(DataParallel):
    """On a host without accelerator torch calls none of these."""

    def scatter(self, inputs, kwargs, device_ids):
        raise AssertionError("scatter")

    def gather(self, outputs, output_device):
        raise AssertionError("gather")


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dim, self.num_classes = nn.Linear(4, 3), "mine", 3

    def forward(self, x):
        return self.layer(x)

    def train_step(self, x, y):
        return F.cross_entropy(self.layer(x), y)

    def encode(self, x):
        return self.layer(x).tanh()


def subclasses():
    said = fit(CallsSuper(mlp())) + fit(AsTorch(mlp())) + fit(Never(mlp()))
    model = LikeMmcv(Steps())
    said += train(model, lambda x, y: F.cross_entropy(model({"data": x}), y))
    said += train(model, lambda x, y: model.train_step({"data": x}, y))
    clear = WithAttributes(Steps())
    said += train(clear, lambda x, y: F.cross_entropy(clear(x), y) + clear.encode(x).pow(2).mean())
    assert (clear.dim, clear.num_classes) == ("mine", 3)
    return said


def data_parallel_inside_data_parallel():
    model = DataParallel(DataParallel(mlp()))
    said = fit(model)
    assert next(iter(model.state_dict())) == "module.module.0.weight"

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.head = DataParallel(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.features(x).relu())

    said += fit(Outer()) + fit(DataParallel(Outer()))
    # The inner one is used first, and by itself again later.
    inner = DataParallel(mlp())
    outer = DataParallel(nn.Sequential(inner, nn.Tanh()))
    return said + fit(inner) + fit(outer) + fit(inner)


def frozen_and_wrapped():
    """A perceptual loss: the frozen net is wrapped, the trained one is not."""
    said = []
    for early in (True, False):
        critic = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh()).eval()
        if early:
            critic.requires_grad_(False)
        wrapped = DataParallel(critic)
        if not early:
            for parameter in wrapped.parameters():
                parameter.requires_grad = False
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))

        def loss(x, y, model=model, wrapped=wrapped):
            made = model(x)
            return F.mse_loss(wrapped(made), wrapped(x).detach()) + (y.double() * wrapped(2 * made).mean(1)).mean()

        said += train(model, loss) + state(critic)
    return said


def copies_and_pickles():
    model = DataParallel(mlp(), device_ids=[0], output_device=0, dim=0)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data():
        loss = F.cross_entropy(model(x), y) + F.mse_loss(model(x), average(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9).add_(0.1 * parameter)
        said.append(loss.item())
    best = copy.deepcopy(model)
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    again = torch.load(written, weights_only=False)
    assert type(again) is type(best) is DataParallel
    assert type(again.module) is nn.Sequential
    model.module.load_state_dict({key[7:]: value for key, value in again.state_dict().items()})
    said += fit(again) + fit(best)
    for wrapped in (model, average, again, best):
        assert all(key.startswith("module.") for key in wrapped.state_dict())
        said += state(wrapped)
        said += [wrapped(x).sum().item() + wrapped.module(x).sum().item() for x, _ in data()]
    return said


# --- the functions ----------------------------------------------------------------------------------------------------


def functional():
    """Alone, torch's function refuses a host without accelerator."""
    import ddp_patch

    def call(net, *args, **kwargs):
        if ddp_patch.is_enabled():
            return nn.parallel.data_parallel(net, *args, **kwargs)
        inputs = args[0] if isinstance(args[0], tuple) else () if args[0] is None else (args[0],)
        return net(*inputs, **kwargs.get("module_kwargs") or {})

    said = []
    net = mlp()
    said += train(net, lambda x, y: F.cross_entropy(call(net, x, [0, 1]), y))
    several = Net()
    said += train(
        several,
        lambda x, y: call(
            several, (x, Pair(x, 2.0)), device_ids=[0, 1, 2], output_device=0, module_kwargs={"y": y}
        ).per_row.mean(),
    )
    tagger = Tagger()
    said += train(
        tagger,
        lambda x, y: F.cross_entropy(call(tagger, x.transpose(0, 1), range(2), dim=1)[0].permute(1, 2, 0), y),
        lambda: DataLoader(sequences(), 8),
    )

    class Inside(nn.Module):
        """As DCGAN's example has it."""

        def __init__(self):
            super().__init__()
            self.main, self.gpus = mlp(), 2

        def forward(self, x):
            return call(self.main, x, range(self.gpus))

    return said + fit(Inside()) + fit(DataParallel(Inside()))


def by_hand(net, ids, x, **kwargs):
    import ddp_patch

    if not ddp_patch.is_enabled():
        return net(x, **kwargs)
    replicas = nn.parallel.replicate(net, ids)
    inputs = nn.parallel.scatter(x, ids)
    if not kwargs:
        outputs = nn.parallel.parallel_apply(replicas[: len(inputs)], inputs)
        return nn.parallel.gather(outputs, ids[0])
    inputs, keywords = scatter_kwargs((x,), kwargs, ids)
    outputs = nn.parallel.parallel_apply(replicas[: len(inputs)], inputs, keywords, devices=ids)
    return nn.parallel.gather(outputs, ids[0], dim=0)


def hand_rolled():
    said = []
    for ids in ([0], [0, 1, 2]):
        net = mlp()
        said += train(net, lambda x, y, net=net, ids=ids: F.cross_entropy(by_hand(net, ids, x), y))
        whole = Net()
        said += train(
            whole, lambda x, y, net=whole, ids=ids: by_hand(net, ids, x, y=y, scale=2.0).per_row.mean(), lr=0.05
        )
    return said


def ensembles():
    """Several nets, each called on the batch, their outputs put together."""
    import ddp_patch

    nets = nn.ModuleList([mlp(), mlp()])

    def loss(x, y):
        if ddp_patch.is_enabled():
            outputs = nn.parallel.parallel_apply(list(nets), [x, (2 * x,)], devices=[0, 1])
            both = nn.parallel.gather(outputs, 0)
        else:
            both = torch.cat([nets[0](x), nets[1](2 * x)])
        return F.cross_entropy(both, torch.cat([y, y]))

    return train(nets, loss)


HABITS = [
    keyword_arguments,
    nested_arguments,
    lists_of_numbers,
    lists_of_uneven_tensors,
    objects_with_tensors,
    packed_sequences,
    dicts_with_attributes,
    no_arguments,
    scalars_among_the_outputs,
    sequence_first_by_transposing,
    sequence_first_by_collate,
    sequence_first_with_carried_states,
    sequence_first_without_a_loader,
    subclasses,
    data_parallel_inside_data_parallel,
    frozen_and_wrapped,
    copies_and_pickles,
    functional,
    hand_rolled,
    ensembles,
]


def run(name):
    torch.manual_seed(1)
    return {habit.__name__: habit for habit in HABITS}[name]()
