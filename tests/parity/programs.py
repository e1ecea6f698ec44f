"""Training scripts composed at random from the habits of real ones; the seed alone decides everything.

``compose(seed)`` gives a program as a plain dict, whose entries say what the script does; ``perform(program)`` runs it
and returns the numbers it saw: every loss and metric, then sums over parameters, buffers, gradients and optimizer state.
"""

import copy
import gc
import io
import json
import random
import sys
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

import ddp_patch

FEATURES, HIDDEN, CLASSES, LENGTH, WORDS = 5, 6, 3, 4, 11

# The plainest program. What a seed chooses is written over it, so the difference describes a program.
PLAIN = {
    "loop": "train",
    "task": "vectors",
    "rows": 16,
    "batch": 8,
    "feed": "in order",
    "epochs": 2,
    "body": [],
    "form": "tensor",
    "wrap": "bare",
    "loss": "cross_entropy",
    "extras": [],
    "backward": "once",
    "zero": "before",
    "accumulate": 1,
    "clip": "no",
    "looks": [],
    "hooks": [],
    "optimizer": "SGD",
    "schedule": "no",
    "events": [],
    "evaluate": "no",
}


# --- choosing ----------------------------------------------------------------------------------------------------------

FEEDS = [
    "in order", "shuffle", "generator", "subset sampler", "weighted sampler", "drop_last", "batch sampler", "list",
    "dicts", "collate", "indices", "split", "kept", "slices", "permutation",
]  # fmt: skip
BODY = [
    "linear", "batch norm", "layer norm", "group norm", "spectral norm", "weight norm", "old weight norm", "checkpoint",
    "reentrant checkpoint", "unused branch", "sometimes", "counting", "weight buffer", "batch buffer", "own batch norm",
    "branch", "center", "keeps", "residual", "scale", "experts", "tied", "shared", "function", "in place",
    "transformer", "frozen",
]  # fmt: skip
ROW_LOSSES = [
    "cross_entropy", "ignore_index", "label_smoothing", "class weight", "sum over count", "nll", "mse", "l1",
    "smooth_l1", "bce_with_logits", "kl_div", "contrastive", "info_nce", "triplet", "masked rows", "per class",
    "per row weights", "hardest rows",
]  # fmt: skip
TOKEN_LOSSES = ["token mean", "token ignore_index", "token per sequence", "token selected"]
FORMS = ["tensor", "tensor", "tuple", "dict", "object", "keyword", "loss", "loss and output", "methods", "two models"]
BACKWARDS = [
    "once", "once", "two forwards", "two backwards", "forwards then backwards", "retain_graph", "autograd.grad",
    "create_graph", "second order", "penalty apart", "scaled", "with gradient", "through a leaf", "autograd.backward",
]  # fmt: skip
EXTRAS = ["penalty", "gradient penalty", "fgsm", "mixup", "noise", "hidden contrastive", "mean teacher", "prototypes"]
LOOKS = ["norm", "between", "numpy", "none", "loss parts", "stacked norm", "data", "argmax"]
HOOKS = [
    "clamp",
    "scale",
    "output",
    "output scale",
    "forward",
    "forward pre",
    "full backward",
    "retain_grad",
    "accumulated",
]
EVENTS = [
    "unfreeze", "freeze", "replace head", "state_dict", "torch.save", "deepcopy", "early stop", "best", "new optimizer",
    "evaluate", "grow", "add layer",
]  # fmt: skip
OPTIMIZERS = [
    "SGD", "momentum", "nesterov", "Adam", "AdamW", "RMSprop", "Adagrad", "LBFGS", "own", "closure", "by hand",
    "two groups", "two optimizers",
]  # fmt: skip
SCHEDULES = ["no", "StepLR", "CosineAnnealingLR", "OneCycleLR", "LambdaLR", "ReduceLROnPlateau"]


def compose(seed):
    """Choose a program; what cannot be combined is not chosen together."""
    rng = random.Random(seed)

    def some(options, most):
        return sorted(rng.sample(options, rng.choice([0, *range(most + 1)])))

    chosen = {
        "seed": seed,
        "loop": rng.choice(["train"] * 9 + ["gan"]),
        "task": rng.choice(
            [
                "vectors",
                "vectors",
                "images",
                "plain images",
                "words",
                "token labels",
                "lstm",
                "gru",
                "lstm time first",
                "gru carried",
            ]
        ),
        "batch": rng.choice([2, 4, 5, 6, 7, 8, 9]),
        "feed": rng.choice(FEEDS),
        "body": rng.sample(BODY, rng.choice([0, 1, 1, 2, 2, 3])),
        "form": rng.choice(FORMS),
        "wrap": rng.choice(["bare", "bare", "DataParallel", "module"]),
        "backward": rng.choice(BACKWARDS),
        "zero": rng.choice(["before", "after", "before, kept", "after, kept", "module", "None"]),
        "accumulate": rng.choice([1, 1, 1, 2, 3]),
        "clip": rng.choice(["no", "no", "norm", "value", "inf norm"]),
        "extras": some(EXTRAS, 2),
        "looks": some(LOOKS, 2),
        "hooks": some(HOOKS, 2),
        "optimizer": rng.choice(OPTIMIZERS),
        "schedule": rng.choice(SCHEDULES),
        "events": [[name, rng.choice([1, 2])] for name in some(EVENTS, 2)],
        "evaluate": rng.choice(["no", "no_grad", "inference_mode", "train mode"]),
    }
    chosen["rows"] = chosen["batch"] * 2 + rng.choice([0, 0, *range(2, chosen["batch"])])
    chosen["loss"] = rng.choice(TOKEN_LOSSES if chosen["task"] == "token labels" else ROW_LOSSES)
    program = {**PLAIN, **chosen}
    _make_valid(program)
    return program


def _make_valid(program):
    def drop(key, *names):
        program[key] = [name for name in program[key] if (name if isinstance(name, str) else name[0]) not in names]

    tokens = program["task"] == "token labels"
    if tokens:
        drop("body", "batch norm", "group norm", "own batch norm", "experts")
        drop("extras", "hidden contrastive", "prototypes")
    else:
        drop("body", "transformer")
    if program["task"] in ("words", "token labels"):
        drop("extras", "gradient penalty", "fgsm", "mixup", "noise")
    if program["task"] == "gru carried":
        program["feed"] = "drop_last"
        program["form"] = "tensor"
        drop("extras", "gradient penalty", "fgsm", "mixup", "hidden contrastive", "mean teacher", "prototypes")
        if program["backward"] in ("two forwards", "two backwards", "forwards then backwards", "through a leaf"):
            program["backward"] = "once"
    if program["form"] in ("loss", "loss and output"):
        drop("extras", "hidden contrastive", "mixup", "prototypes")
        if program["backward"] in ("with gradient", "through a leaf", "retain_graph"):
            program["backward"] = "once"
    if program["form"] == "loss":
        drop("extras", "mean teacher", "gradient penalty")
        drop("hooks", "output", "output scale", "retain_grad")
        drop("looks", "argmax")
    if program["form"] == "methods" and program["wrap"] == "DataParallel":
        program["wrap"] = "module"
    if program["form"] == "two models":
        program["wrap"] = "bare"
    if program["backward"] == "through a leaf":
        drop("extras", "gradient penalty", "fgsm", "hidden contrastive", "prototypes", "mean teacher")
        drop("body", "keeps")
        program["form"] = "methods"
        program["wrap"] = "bare"
    if program["backward"] == "with gradient":
        program["extras"] = []
        drop("body", "keeps")
        drop("looks", "loss parts")
    if (
        program["loss"] in ("info_nce", "contrastive", "triplet", "per class", "hardest rows")
        and "fgsm" in program["extras"]
    ):
        drop("extras", "fgsm")
    doubly = program["backward"] in ("create_graph", "second order") or "gradient penalty" in program["extras"]
    if doubly:
        drop("body", "function", "reentrant checkpoint", "transformer")
        if program["backward"] in ("create_graph", "second order") and "gradient penalty" in program["extras"]:
            drop("body", "batch norm")  # whose third derivatives torch computes with moments that are constants
        if "lstm" in program["task"] or "gru" in program["task"]:
            program["task"] = "vectors"
    if program["backward"] == "create_graph":
        program["zero"] = "None"
        program["optimizer"] = "SGD"
        program["accumulate"] = 1
        program["clip"] = "no"
    if program["backward"] in ("autograd.grad", "second order") or "gradient penalty" in program["extras"]:
        drop("body", "reentrant checkpoint")
    if program["backward"] == "autograd.grad":
        program["accumulate"] = 1
    if program["optimizer"] in ("LBFGS", "closure"):
        program.update(accumulate=1, schedule="no", clip="no", zero="before")
        drop("events", "early stop", "best")
        drop("extras", "mixup", "noise", "mean teacher")
        if program["task"] == "gru carried":
            program["task"] = "gru"
    if program["optimizer"] == "LBFGS":
        drop("hooks", "clamp")
        if program["backward"] == "with gradient":  # nothing holds the output then
            program["backward"] = "once"
    if program["optimizer"] in ("LBFGS", "by hand", "two groups", "two optimizers"):
        drop("events", "grow", "replace head", "add layer", "new optimizer")
    if any(name == "best" for name, _ in program["events"]):
        drop("events", "grow", "add layer")
    if program["backward"] == "through a leaf":
        drop("events", "freeze", "unfreeze")
    if program["optimizer"] == "by hand":
        program["schedule"] = "no"
    if program["schedule"] in ("OneCycleLR", "LambdaLR"):
        drop("events", "grow", "add layer", "replace head")
    if program["loop"] == "gan":
        program.update(task="vectors", form="tensor", loss="mse", extras=[], backward="once", accumulate=1, events=[])
        program.update(schedule="no", evaluate="no")
        drop("body", "transformer", "keeps", "sometimes")
        drop("hooks", "output", "output scale", "retain_grad")
        drop("looks", "between", "loss parts", "argmax")
        if program["optimizer"] in ("LBFGS", "closure", "by hand", "two groups", "two optimizers"):
            program["optimizer"] = "Adam"


def describe(program):
    """Write a program down as what it has beyond the plainest one."""
    return json.dumps({key: value for key, value in program.items() if value != PLAIN.get(key)})


# --- data --------------------------------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


def stack(samples):
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def tensors(program):
    g = torch.Generator().manual_seed(program["seed"])
    n, task, loss = program["rows"], program["task"], program["loss"]
    if task in ("images", "plain images"):
        x = torch.randn(n, 1, 5, 5, generator=g)
    elif task in ("words", "token labels"):
        x = torch.randint(1, WORDS, (n, LENGTH), generator=g)
        lengths = torch.randint(1, LENGTH + 1, (n, 1), generator=g)
        x[torch.arange(LENGTH) >= lengths] = 0
    elif "lstm" in task or "gru" in task:
        x = torch.randn(n, LENGTH, FEATURES, generator=g)
    else:
        x = torch.randn(n, FEATURES, generator=g)
    if task == "token labels":
        y = torch.randint(0, CLASSES, (n, LENGTH), generator=g)
    elif loss in ("mse", "l1", "smooth_l1"):
        y = torch.randn(n, CLASSES, generator=g)
    elif loss == "bce_with_logits":
        y = torch.randint(0, 2, (n, CLASSES), generator=g).double()
    elif loss == "kl_div":
        y = torch.randn(n, CLASSES, generator=g).softmax(1)
    else:
        y = torch.randint(0, CLASSES, (n,), generator=g)
    return x, y


def feeding(program, x, y):
    """Give a function that starts an epoch: it returns the batches and their number."""
    batch, kind = program["batch"], program["feed"]
    dataset = TensorDataset(x, y)
    if kind in ("slices", "permutation"):

        def epoch():
            order = torch.randperm(len(x)) if kind == "permutation" else torch.arange(len(x))
            starts = range(0, len(x), batch)
            return [(x[order[i : i + batch]], y[order[i : i + batch]]) for i in starts]

        return epoch
    if kind == "in order":
        loader = DataLoader(dataset, batch)
    elif kind == "shuffle":
        loader = DataLoader(dataset, batch, shuffle=True)
    elif kind == "generator":
        loader = DataLoader(dataset, batch, shuffle=True, generator=torch.Generator().manual_seed(5))
    elif kind == "subset sampler":
        loader = DataLoader(dataset, batch, sampler=SubsetRandomSampler(range(1, len(x))))
    elif kind == "weighted sampler":
        loader = DataLoader(dataset, batch, sampler=WeightedRandomSampler(torch.rand(len(x)), len(x)))
    elif kind == "drop_last":
        loader = DataLoader(dataset, batch, shuffle=True, drop_last=True)
    elif kind == "batch sampler":
        loader = DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), batch, False))
    elif kind == "list":
        loader = DataLoader(list(zip(x, y, strict=True)), batch, shuffle=True)
    elif kind == "dicts":
        loader = DataLoader(Rows(x, y), batch, shuffle=True)
    elif kind == "collate":
        loader = DataLoader(dataset, batch, shuffle=True, collate_fn=stack)
    elif kind == "indices":
        loader = DataLoader(range(len(x)), batch, shuffle=True)
    elif kind == "split":
        loader = DataLoader(random_split(dataset, [len(x) - 1, 1])[0], batch, shuffle=True)
    elif kind == "kept":
        kept = list(DataLoader(dataset, batch))
        return lambda: kept

    def epoch():
        return Epoch(loader, kind, x, y)

    return epoch


class Epoch:
    """A pass over a loader, with the batches unpacked as a script would."""

    def __init__(self, loader, kind, x, y):
        self.loader, self.kind, self.x, self.y = loader, kind, x, y

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for batch in self.loader:
            if self.kind == "dicts":
                yield batch["x"], batch["y"]
            elif self.kind == "indices":
                yield self.x[batch], self.y[batch]
            else:
                yield batch


# --- models ------------------------------------------------------------------------------------------------------------


class Pictures(nn.Module):
    def __init__(self, normed):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if normed else nn.Identity()
        self.layer = nn.Linear(16, HIDDEN)

    def forward(self, x):
        x = F.avg_pool2d(self.norm(self.conv(x)).tanh(), 2)
        return self.layer(x.view(x.size(0), -1))


class Words(nn.Module):
    def __init__(self, pooled):
        super().__init__()
        self.embedding, self.pooled = nn.Embedding(WORDS, HIDDEN, padding_idx=0), pooled

    def forward(self, x):
        h = self.embedding(x)
        if not self.pooled:
            return h
        mask = (x != 0).unsqueeze(-1)
        return (h * mask).sum(1) / mask.sum(1)


class Recurrent(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.task = task
        kind = nn.LSTM if "lstm" in task else nn.GRU
        self.cells = kind(FEATURES, HIDDEN, batch_first="time first" not in task)

    def forward(self, x, state=None):
        if "time first" in self.task:
            x = x.transpose(0, 1)
        out, hidden = self.cells(x, state)
        if self.task == "gru carried":
            return out[:, -1], hidden
        return hidden[0][-1] if self.task == "lstm" else out.mean(0 if "time first" in self.task else 1)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()), reentrant

    def forward(self, h):
        return checkpoint(self.inner, h, use_reentrant=self.reentrant)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, h):
        return self.used(h).tanh()


class Sometimes(nn.Module):
    def __init__(self, counting):
        super().__init__()
        self.layer, self.step, self.counting = nn.Linear(HIDDEN, HIDDEN), 0, counting

    def forward(self, h):
        if self.counting:
            self.step += 1
        return h + self.layer(h).tanh() if self.step % 2 else h


class WeightBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("average", torch.zeros(HIDDEN))

    def forward(self, h):
        if self.training:
            self.average.mul_(0.9).add_(0.1 * self.layer.weight.detach().mean(0))
        return self.layer(h) - self.average


class BatchBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(HIDDEN))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, h):
        if self.training:
            with torch.no_grad():
                self.center = 0.9 * self.center + 0.1 * h.reshape(-1, HIDDEN).mean(0)
                self.seen += len(h)
        return h - self.center


class OwnBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(HIDDEN))
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def forward(self, h):
        mean, var = (h.mean(0), h.var(0, unbiased=False)) if self.training else (self.mean, torch.ones(()))
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * mean.detach())
        return self.gain * (h - mean) / (var + 0.1).sqrt()


class Branch(nn.Module):
    def forward(self, h):
        return h * 0.5 if h.abs().mean() > 0.4 else h


class Center(nn.Module):
    def forward(self, h):
        return h - 0.5 * h.mean(0, keepdim=True)


class Keeps(nn.Module):
    def forward(self, h):
        self.kept = h
        return h.tanh()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h):
        return h + 0.5 * self.layer(h.tanh())


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.9))

    def forward(self, h):
        return h * self.scale


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, h):
        choice = h[:, :3].argmax(1)
        out = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().squeeze(1)
            if len(rows):
                out[rows] = expert(h[rows])
        return out.tanh()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN)
        self.back.weight = self.there.weight

    def forward(self, h):
        return self.back(self.there(h).tanh())


class Damped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, factor):
        ctx.factor = factor
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Damp(nn.Module):
    def forward(self, h):
        return Damped.apply(h, 0.5)


class InPlace(nn.Module):
    def forward(self, h):
        h = h.clone()
        h[..., 0] *= 0.5
        return h.add_(0.1).tanh_()


def block(name):
    if name == "frozen":
        return nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)
    if name == "spectral norm":
        return parametrizations.spectral_norm(nn.Linear(HIDDEN, HIDDEN))
    if name == "weight norm":
        return parametrizations.weight_norm(nn.Linear(HIDDEN, HIDDEN))
    if name == "old weight norm":
        return nn.utils.weight_norm(nn.Linear(HIDDEN, HIDDEN))
    if name == "shared":
        layer = nn.Linear(HIDDEN, HIDDEN)
        return nn.Sequential(layer, nn.Tanh(), layer)
    if name == "transformer":
        return nn.TransformerEncoderLayer(HIDDEN, 2, 8, dropout=0, batch_first=True)
    return {
        "linear": lambda: nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()),
        "batch norm": lambda: nn.BatchNorm1d(HIDDEN),
        "layer norm": lambda: nn.LayerNorm(HIDDEN),
        "group norm": lambda: nn.GroupNorm(2, HIDDEN),
        "checkpoint": lambda: Checkpointed(False),
        "reentrant checkpoint": lambda: Checkpointed(True),
        "unused branch": Unused,
        "sometimes": lambda: Sometimes(False),
        "counting": lambda: Sometimes(True),
        "weight buffer": WeightBuffer,
        "batch buffer": BatchBuffer,
        "own batch norm": OwnBatchNorm,
        "branch": Branch,
        "center": Center,
        "keeps": Keeps,
        "residual": Residual,
        "scale": Scale,
        "experts": Experts,
        "tied": Tied,
        "function": Damp,
        "in place": InPlace,
    }[name]()


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Encoder(nn.Module):
    def __init__(self, program):
        super().__init__()
        task = program["task"]
        if task in ("images", "plain images"):
            self.backbone = Pictures(task == "images")
        elif task in ("words", "token labels"):
            self.backbone = Words(task == "words")
        elif task == "vectors":
            self.backbone = nn.Linear(FEATURES, HIDDEN)
        else:
            self.backbone = Recurrent(task)
        self.blocks = nn.ModuleList(block(name) for name in program["body"])

    def forward(self, x):
        h = self.backbone(x)
        for each in self.blocks:
            h = each(h)
        return h


class Net(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.encoder, self.head = Encoder(program), nn.Linear(HIDDEN, CLASSES)

    def encode(self, x):
        return self.encoder(x)

    def decode(self, h):
        return self.head(h.tanh())

    def forward(self, x, y=None, state=None):
        form = self.program["form"]
        if self.program["task"] == "gru carried":
            h, state = self.encoder.backbone(x, state)
            for each in self.encoder.blocks:
                h = each(h)
            return self.decode(h), state
        h = self.encode(x)
        z = self.decode(h)
        if form == "tuple":
            return z, h
        if form == "dict":
            return {"logits": z, "hidden": h}
        if form == "object":
            return Output(z, h)
        if form == "loss":
            return criterion(self.program, z, y, x)
        if form == "loss and output":
            return criterion(self.program, z, y, x), z
        return z


# --- losses ------------------------------------------------------------------------------------------------------------


def criterion(program, z, y, x):
    kind = program["loss"]
    if kind == "cross_entropy":
        return F.cross_entropy(z, y)
    if kind == "ignore_index":
        return F.cross_entropy(z, y, ignore_index=2) if (y != 2).any() else z.sum() * 0
    if kind == "label_smoothing":
        return nn.CrossEntropyLoss(label_smoothing=0.1)(z, y)
    if kind == "class weight":
        return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.5, 2.0]))(z, y)
    if kind == "sum over count":
        return F.cross_entropy(z, y, reduction="sum") / y.size(0)
    if kind == "nll":
        return F.nll_loss(F.log_softmax(z, dim=1), y)
    if kind == "mse":
        return F.mse_loss(z, y)
    if kind == "l1":
        return nn.L1Loss()(z, y)
    if kind == "smooth_l1":
        return F.smooth_l1_loss(z, y, beta=0.5)
    if kind == "bce_with_logits":
        return nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 0.5]))(z, y)
    if kind == "kl_div":
        return F.kl_div(z.log_softmax(1), y, reduction="batchmean")
    if kind == "contrastive":
        e = F.normalize(z, dim=1)
        same = (y.unsqueeze(0) == y.unsqueeze(1)).double()
        return ((e @ e.T - same) ** 2).mean()
    if kind == "info_nce":
        return F.cross_entropy(z @ z.T / 2, torch.arange(len(z)))
    if kind == "triplet":
        return F.triplet_margin_loss(z, z.roll(1, 0), z.roll(2, 0), margin=3.0)
    if kind == "masked rows":
        mask = (y != 0).double()
        return (F.cross_entropy(z, y, reduction="none") * mask).sum() / mask.sum().clamp(min=1)
    if kind == "per class":
        return sum(F.cross_entropy(z[y == c], y[y == c]) for c in range(CLASSES) if (y == c).any())
    if kind == "per row weights":
        losses = F.cross_entropy(z, y, reduction="none")
        weights = torch.softmax(losses.detach(), dim=0)
        return (weights * losses).sum()
    if kind == "hardest rows":
        return F.cross_entropy(z, y, reduction="none").topk(max(1, len(y) // 2)).values.mean()
    mask = x != 0
    if kind == "token mean":
        losses = F.cross_entropy(z.transpose(1, 2), y, reduction="none")
        return (losses * mask).sum() / mask.sum()
    if kind == "token ignore_index":
        targets = y.masked_fill(~mask, -100)
        return F.cross_entropy(z.reshape(-1, CLASSES), targets.reshape(-1))
    if kind == "token per sequence":
        losses = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").view(len(y), -1)
        return ((losses * mask).sum(1) / mask.sum(1)).mean()
    return F.cross_entropy(z[mask], y[mask])  # token selected


# --- scripts -----------------------------------------------------------------------------------------------------------


class Own(torch.optim.Optimizer):
    """An optimizer as people write them."""

    def __init__(self, params, lr=0.1, momentum=0.5):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "average" not in state:
                    state["average"] = torch.zeros_like(p)
                state["average"].mul_(group["momentum"]).add_(p.grad)
                p.add_(state["average"], alpha=-group["lr"])


def optimizer_for(kind, params):
    if kind == "momentum":
        return torch.optim.SGD(params, 0.05, momentum=0.9)
    if kind == "nesterov":
        return torch.optim.SGD(params, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01)
    if kind == "Adam":
        return torch.optim.Adam(params, 0.01, eps=1e-4)
    if kind == "AdamW":
        return torch.optim.AdamW(params, 0.01, eps=1e-4, weight_decay=0.1)
    if kind == "RMSprop":
        return torch.optim.RMSprop(params, 0.01, eps=1e-3)
    if kind == "Adagrad":
        return torch.optim.Adagrad(params, 0.01, eps=1e-3)
    if kind == "LBFGS":
        return torch.optim.LBFGS(params, lr=0.1, max_iter=3, history_size=3)
    if kind == "own":
        return Own(params)
    return torch.optim.SGD(params, 0.1)


def schedule_for(kind, optimizer):
    schedulers = torch.optim.lr_scheduler
    if kind == "StepLR":
        return schedulers.StepLR(optimizer, 2, 0.5)
    if kind == "CosineAnnealingLR":
        return schedulers.CosineAnnealingLR(optimizer, 8)
    if kind == "OneCycleLR":
        return schedulers.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=False)
    if kind == "LambdaLR":
        return schedulers.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05)


class Script:
    """What the training script holds at its top level."""

    def __init__(self, program):
        self.program, self.said, self.heard, self.step = program, [], {}, 0
        self.net = Net(program)
        self.model = nn.DataParallel(self.net) if program["wrap"] in ("DataParallel", "module") else self.net
        names = [name for name, _ in program["events"]]
        if "unfreeze" in names:
            self.net.encoder.backbone.requires_grad_(False)
        self.leaf = self.prototypes = None
        self.state = None
        self.teacher = copy.deepcopy(self.net) if "mean teacher" in program["extras"] else None
        if "prototypes" in program["extras"]:
            self.prototypes = nn.Parameter(torch.randn(CLASSES, HIDDEN))
        self.best, self.best_state = float("inf"), None
        self.make_optimizers()
        self.install_hooks()

    def params(self):
        return [*self.model.parameters(), *([] if self.prototypes is None else [self.prototypes])]

    def make_optimizers(self):
        kind = self.program["optimizer"]
        self.optimizers = []
        if kind == "two groups":
            head = [*self.net.head.parameters()]
            rest = [p for p in self.params() if all(p is not q for q in head)]
            self.optimizers = [torch.optim.SGD([{"params": rest}, {"params": head, "lr": 0.05}], 0.1)]
        elif kind == "two optimizers":
            head = [*self.net.head.parameters()]
            rest = [p for p in self.params() if all(p is not q for q in head)]
            self.optimizers = [torch.optim.Adam(rest, 0.01, eps=1e-4), torch.optim.SGD(head, 0.1)]
        elif kind != "by hand":
            self.optimizers = [optimizer_for(kind, self.params())]
        self.schedule = (
            None if self.program["schedule"] == "no" else schedule_for(self.program["schedule"], self.optimizers[-1])
        )

    def install_hooks(self):
        hooks = self.program["hooks"]
        if "clamp" in hooks:
            self.net.head.weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))
        if "scale" in hooks:
            for p in self.net.parameters():
                if p.requires_grad:
                    p.register_hook(lambda grad: grad * 0.5)
        if "accumulated" in hooks:
            self.net.head.bias.register_post_accumulate_grad_hook(lambda p: self.hear("accumulated", p.grad.norm()))
        if "forward" in hooks:
            self.net.head.register_forward_hook(lambda module, args, out: self.hear("forward", out.mean(), out.var()))
        if "forward pre" in hooks:
            self.net.head.register_forward_pre_hook(lambda module, args: self.hear("pre", args[0].abs().max()))
        if "full backward" in hooks:
            self.net.head.register_full_backward_hook(lambda module, into, out: self.hear("backward", out[0].norm()))

    def say(self, *values):
        self.said += [float(value.detach()) if isinstance(value, torch.Tensor) else float(value) for value in values]

    def hear(self, hook, *values):
        """Keep what a hook saw apart: autograd promises no order between hooks of different kinds."""
        said, self.said = self.said, self.heard.setdefault(hook, [])
        self.say(*values)
        self.said = said

    # --- forward ---

    def outputs(self, x, y):
        """Call the model as the script does; return the loss it computed, its output and its hidden values."""
        form, model = self.program["form"], self.model
        called = self.net if self.program["wrap"] == "module" else model
        if self.program["task"] == "gru carried":
            z, state = called(x, state=self.state)
            self.state = state.detach()
            return None, z, None
        if form == "methods":
            h = self.net.encode(x)
            return None, self.net.decode(h), h
        if form == "two models":
            h = self.net.encoder(x)
            return None, self.net.head(h), h
        if form == "loss":
            return called(x, y), None, None
        if form == "loss and output":
            return *called(x, y), None
        out = called(x=x) if form == "keyword" else called(x)
        if form == "tuple":
            return None, *out
        if form == "dict":
            return None, out["logits"], out["hidden"]
        if form == "object":
            return None, out.logits, out.hidden
        return None, out, None

    def loss(self, x, y):
        """One forward and everything the script adds to its loss."""
        extras = self.program["extras"]
        if "gradient penalty" in extras:
            x = x.detach().requires_grad_(True)
        if "noise" in extras:
            x = x + 0.1 * torch.randn(x.shape)
        lam, perm = None, None
        if "mixup" in extras:
            lam, perm = float(np.random.beta(1, 1)), torch.randperm(len(x))
            x = lam * x + (1 - lam) * x[perm]
        loss, z, h = self.outputs(x, y)
        if loss is None:
            loss = criterion(self.program, z, y, x)
        if lam is not None:
            loss = lam * loss + (1 - lam) * criterion(self.program, z, y[perm], x)
        if "loss parts" in self.program["looks"]:
            self.say(loss)
        hooks = self.program["hooks"]
        if "output" in hooks:
            z.register_hook(lambda grad: self.hear("output", grad.norm(), len(grad)))
        if "output scale" in hooks:
            z.register_hook(lambda grad: grad * 0.5)
        if "retain_grad" in hooks:
            z.retain_grad()
        for module in self.net.modules():
            if isinstance(module, Keeps):
                loss = loss + 0.1 * module.kept.pow(2).mean()
        if "penalty" in extras:
            loss = loss + 1e-2 * sum(p.pow(2).sum() for p in self.model.parameters())
        if "hidden contrastive" in extras and h is not None:
            e = F.normalize(h, dim=1)
            loss = loss + 0.1 * F.cross_entropy(e @ e.t(), torch.arange(len(e)))
        if "prototypes" in extras and h is not None:
            loss = loss + 0.1 * torch.cdist(h, self.prototypes).min(1).values.mean()
        if "mean teacher" in extras:
            with torch.no_grad():
                target = self.teacher(x, y)
            if not isinstance(target, torch.Tensor):
                target = {
                    "tuple": lambda t: t[0],
                    "loss and output": lambda t: t[1],
                    "dict": lambda t: t["logits"],
                }.get(self.program["form"], lambda t: t.logits)(target)
            loss = loss + 0.1 * F.mse_loss(z, target)
        if "gradient penalty" in extras:
            grad = torch.autograd.grad(z.sum(), x, create_graph=True)[0]
            loss = loss + 0.1 * ((grad.flatten(1).norm(dim=1) - 1) ** 2).mean()
        self.z = z
        return loss

    # --- backward ---

    def gradients(self, x, y):
        """Compute a loss and its gradients; return the loss."""
        kind, factor = self.program["backward"], self.program["accumulate"]
        other = x.roll(1, 1) if x.dtype == torch.long else 0.5 * x
        if "fgsm" in self.program["extras"]:
            x = x.detach().clone().requires_grad_(True)
            self.loss(x, y).backward()
            x = (x + 0.1 * x.grad.sign()).detach()
            self.clear()
        if kind == "with gradient":
            _, z, _ = self.outputs(x, y)
            self.z = z
            z.backward(torch.full_like(z, 0.1 / len(z)))
            return z.mean()
        if kind == "through a leaf":
            h = self.net.encode(x)
            leaf = h.detach().requires_grad_(True)
            loss = criterion(self.program, self.net.decode(leaf), y, x) / factor
            loss.backward()
            h.backward(leaf.grad)
            self.z = h
            return loss
        loss = self.loss(x, y) / factor
        params = [p for p in self.params() if p.requires_grad]
        if kind == "two forwards":
            loss = loss + self.loss(other, y) / factor
            loss.backward()
        elif kind == "two backwards":
            loss.backward()
            self.loss(other, y).backward()
        elif kind == "forwards then backwards":
            second = self.loss(other, y)
            loss.backward()
            second.backward()
        elif kind == "retain_graph":
            loss.backward(retain_graph=True)
            self.look()
            (self.z**2).mean().backward()
        elif kind == "autograd.grad":
            grads = torch.autograd.grad(loss, params, allow_unused=True)
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
        elif kind == "create_graph":
            loss.backward(create_graph=True)
            penalty = 0.01 * sum(p.grad.pow(2).sum() for p in params if p.grad is not None)
            self.say(penalty)
            penalty.backward()
        elif kind == "second order":
            grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
            penalty = sum(grad.pow(2).sum() for grad in grads if grad is not None)
            loss = loss + 0.01 * penalty
            loss.backward()
        elif kind == "penalty apart":
            loss.backward()
            (0.01 * sum(p.pow(2).sum() for p in self.model.parameters())).backward()
        elif kind == "scaled":
            (loss * 8).backward()
            for p in params:
                if p.grad is not None:
                    p.grad /= 8
        elif kind == "autograd.backward":
            torch.autograd.backward([loss, 0.1 * loss.pow(2)])
        else:
            loss.backward()
        return loss

    def look(self):
        """Read gradients as logging code does."""
        looks = self.program["looks"]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        if "norm" in looks:
            self.say(*(g.norm() for g in grads))
        if "numpy" in looks:
            self.say(grads[-1].detach().numpy().sum())
        if "none" in looks:
            self.say(sum(p.grad is None for p in self.model.parameters()))
        if "stacked norm" in looks:
            self.say(torch.norm(torch.stack([torch.norm(g.detach()) for g in grads])))
        if "data" in looks:
            self.say(sum(p.grad.data.abs().sum() for p in self.net.head.parameters() if p.grad is not None))
        if "argmax" in looks:
            self.say((self.z.argmax(-1) == 1).sum(), self.z.detach().max())
        if "retain_grad" in self.program["hooks"] and self.program["backward"] in ("once", "scaled"):
            self.say(self.z.grad.norm())

    def clear(self):
        zero = self.program["zero"]
        if zero == "module":
            self.model.zero_grad()
        elif zero == "None" or not self.optimizers:
            for p in self.params():
                p.grad = None
        else:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none="kept" not in zero)

    def update(self):
        """Clip and step."""
        clip = self.program["clip"]
        if clip == "norm":
            self.say(nn.utils.clip_grad_norm_(self.model.parameters(), 0.3))
        elif clip == "inf norm":
            self.say(nn.utils.clip_grad_norm_(self.model.parameters(), 0.05, norm_type=float("inf")))
        elif clip == "value":
            nn.utils.clip_grad_value_(self.params(), 0.02)
        for optimizer in self.optimizers:
            optimizer.step()
        if not self.optimizers:
            for p in self.params():
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-0.1)
        if self.teacher is not None:
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)

    # --- loops ---

    def train(self):
        """Train as long as the program says."""
        program = self.program
        x, y = tensors(program)
        epoch = feeding(program, x, y)
        before = program["zero"].startswith(("before", "module", "None"))
        for _ in range(program["epochs"]):
            batches, total = epoch(), 0.0
            for i, (inputs, targets) in enumerate(batches):
                if self.happen(x, y):
                    return
                for module in self.net.modules():
                    if isinstance(module, Sometimes) and not module.counting:
                        module.step = self.step
                if program["optimizer"] in ("LBFGS", "closure"):
                    loss = self.by_closure(inputs, targets)
                else:
                    if before and i % program["accumulate"] == 0:
                        self.clear()
                    loss = self.gradients(inputs, targets)
                    last = (i + 1) % program["accumulate"] == 0 or i + 1 == len(batches)
                    if last or "between" in program["looks"]:
                        self.look()
                    if last:
                        self.update()
                        if not before:
                            self.clear()
                self.say(loss)
                total += loss.item() * inputs.size(0)
                self.remember(loss)
                self.step += 1
            self.say(total / len(x))
            if self.schedule is not None:
                self.schedule.step(*([total] if program["schedule"] == "ReduceLROnPlateau" else []))
                self.say(self.optimizers[-1].param_groups[0]["lr"])
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)
        if program["evaluate"] != "no":
            self.evaluate(x, y)

    def by_closure(self, inputs, targets):
        def closure():
            self.clear()
            loss = self.gradients(inputs, targets)
            self.look()
            return loss

        return self.optimizers[0].step(closure)

    def remember(self, loss):
        keeps = any(name == "best" for name, _ in self.program["events"])
        if keeps and loss.item() < self.best:
            self.best, self.best_state = loss.item(), copy.deepcopy(self.model.state_dict())

    def happen(self, x, y):
        """Do what the script does at this step beside training; tell whether it stops."""
        for name, step in self.program["events"]:
            if name == "early stop" and self.step > 0 and self.said[-1] < 1.0:
                return True
            if step != self.step:
                continue
            if name == "unfreeze":
                self.net.encoder.backbone.requires_grad_(True)
            elif name == "freeze":
                self.net.encoder.backbone.requires_grad_(False)
            elif name == "replace head":
                self.net.head = nn.Linear(HIDDEN, CLASSES)
                self.optimizers[0].add_param_group({"params": list(self.net.head.parameters()), "lr": 0.05})
            elif name == "add layer":
                self.net.encoder.blocks.append(nn.Linear(HIDDEN, HIDDEN))
                self.optimizers[0].add_param_group({"params": list(self.net.encoder.blocks[-1].parameters())})
            elif name == "grow":
                self.net.head = nn.Sequential(self.net.head, nn.Tanh())
            elif name == "state_dict":
                self.model.load_state_dict({key: value * 0.9 for key, value in self.model.state_dict().items()})
                for optimizer in self.optimizers:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            elif name == "torch.save":
                stream = io.BytesIO()
                torch.save({"model": self.model.state_dict(), "step": self.step}, stream)
                stream.seek(0)
                self.model.load_state_dict(torch.load(stream)["model"])
            elif name == "deepcopy":
                old, self.net = self.net, copy.deepcopy(self.net)
                self.model = nn.DataParallel(self.net) if self.model is not old else self.net
                self.make_optimizers()
            elif name == "new optimizer":
                self.make_optimizers()
            elif name == "evaluate":
                self.evaluate(x, y)
        return False

    def evaluate(self, x, y):
        """Score the model on the data, in batches of another size."""
        state, self.state = self.state, None
        self.model.eval()
        if self.program["evaluate"] == "train mode":
            self.model.train()
        correct, total, seen = 0, 0.0, []
        guard = torch.inference_mode if self.program["evaluate"] == "inference_mode" else torch.no_grad
        with guard():
            for inputs, targets in DataLoader(TensorDataset(x, y), 7):
                self.state = None
                loss, z, _ = self.outputs(inputs, targets)
                if loss is None:
                    loss = criterion(self.program, z, targets, inputs)
                total += loss.item() * len(inputs)
                if z is not None:
                    seen.append(z)
                    if targets.dtype == torch.long:
                        correct += z.argmax(-1).eq(targets).sum().item()
        self.model.train()
        self.state = state
        self.say(total / len(x), correct)
        if seen:
            self.say(torch.cat(seen).pow(2).sum())

    def gan(self):
        """Alternate a generator and this script's net as its critic."""
        generator = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, FEATURES))
        optimizer = optimizer_for(self.program["optimizer"], generator.parameters())
        for _ in range(self.program["epochs"]):
            for x, _ in feeding(self.program, *tensors(self.program))():
                fake = generator(torch.randn(x.size(0), 2))
                self.clear()
                real = self.model(x).mean(1)
                loss = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
                made = self.model(fake.detach()).mean(1)
                loss = loss + F.binary_cross_entropy_with_logits(made, torch.zeros_like(made))
                loss.backward()
                self.look()
                self.update()
                generator.zero_grad()
                made = self.model(fake).mean(1)
                fooled = F.binary_cross_entropy_with_logits(made, torch.ones_like(made))
                fooled.backward()
                optimizer.step()
                self.say(loss, fooled)
        self.say(*(p.pow(2).sum() for p in generator.parameters()))

    def leftovers(self):
        """Sum up everything the script leaves behind."""
        for hook in sorted(self.heard):
            self.said += self.heard[hook]
        for value in [*self.params(), *self.model.buffers()]:
            self.say(value.double().sum(), value.double().pow(2).sum())
        for p in self.params():
            self.say(p.grad is None, *([] if p.grad is None else [p.grad.sum(), p.grad.pow(2).sum()]))
        for optimizer in self.optimizers:
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                state = optimizer.state.get(p, {})
                # LBFGS divides by tiny curvatures for these, which magnifies rounding.
                for _, value in sorted((name, value) for name, value in state.items() if name not in ("ro", "al")):
                    for each in value if isinstance(value, list) else [value]:
                        if isinstance(each, torch.Tensor):
                            self.say(each.sum(), each.double().pow(2).sum())
                        elif each is not None:
                            self.say(each)


def perform(program):
    """Run a program; return the numbers it saw."""
    torch.manual_seed(program["seed"])
    np.random.seed(program["seed"])
    random.seed(program["seed"])
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        script = Script(program)
        getattr(script, program["loop"])()
        script.leftovers()
        return script.said
    finally:
        torch.set_default_dtype(default)


def run(seed):
    return perform(compose(seed))


def run_all(programs):
    """Run programs one after the other, each in a session of its own, and note what each gave in a file per rank.

    An error ends it, since it may have left the ranks out of step.
    """
    rank = ddp_patch.rank()
    notes = io.FileIO(f"numbers.{rank}", "a")  # below open(), of which rank 0's alone is real
    for program in programs:
        ddp_patch.disable()
        gc.collect()
        ddp_patch.enable()
        sys.stderr.write(f"program {program['seed']}\n")
        try:
            numbers = perform(program)
        except Exception as error:
            notes.write(json.dumps({"seed": program["seed"], "error": type(error).__name__}).encode() + b"\n")
            raise
        notes.write(json.dumps({"seed": program["seed"], "numbers": numbers}).encode() + b"\n")
    notes.close()
