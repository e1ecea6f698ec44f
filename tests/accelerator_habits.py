"""What scripts do on accelerators. Each habit gives numbers that one process and several ranks must agree on.

On the CPU where there is no accelerator: so they are tried on every machine, and on a GPU as well (``test_gpu.py``).
"""

import contextlib
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

STEPS = 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def images(rows=32, batch=8, **options):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, 8, 8, generator=generator)
    y = torch.randint(0, 4, (rows,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch, **options)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        ),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
    ).to(DEVICE)


def half_precision_with_a_scaler():
    """``GradScaler`` and float16, with a gradient norm that is clipped."""
    model, scaler = net(), torch.amp.GradScaler(DEVICE.type, init_scale=256.0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for x, y in images():
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss.item(), norm.item()]
    return [*losses, scaler.get_scale()]


def bfloat16():
    model = net()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for x, y in images():
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x.to(DEVICE)).float(), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def channels_last():
    model = net().to(memory_format=torch.channels_last)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for x, y in images():
        x = x.to(DEVICE).to(memory_format=torch.channels_last)
        assert x.is_contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(model(x), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Prefetcher:
    """Copies the next batch on a stream of its own, as Apex's examples do."""

    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream() if DEVICE.type == "cuda" else None
        self.preload()

    def preload(self):
        try:
            x, y = next(self.loader)
        except StopIteration:
            self.x = None
            return
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.x, self.y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
            self.x = self.x.float().sub_(0.1).div_(1.5)

    def next(self):
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        if self.stream and x is not None:
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
        self.preload()
        return x, y


def a_prefetcher_on_a_side_stream():
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    prefetcher = Prefetcher(images(pin_memory=True))
    for _ in range(STEPS):
        x, y = prefetcher.next()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def recomputation_with_dropout():
    """What is recomputed draws what was drawn: the gradient is that of no recomputation, on the same ranks."""

    class Layer(nn.Module):
        def __init__(self, recomputes):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 6))
            self.recomputes = recomputes

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)

    found = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), Layer(recomputes), nn.Linear(6, 1)).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
        for (x,) in DataLoader(TensorDataset(data), 8):
            optimizer.zero_grad()
            model(x.to(DEVICE)).pow(2).mean().backward()
            optimizer.step()
        found.append([p.sum().item() for p in model.parameters()])
    return [abs(one - other) < 1e-6 for one, other in zip(*found, strict=True)]


def a_gradient_penalty_through_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)).to(DEVICE)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    data = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
    for (x,) in DataLoader(TensorDataset(data), 8):
        x = x.to(DEVICE).requires_grad_()
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.mean() + (grad.norm(2, dim=1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def states_of_all_generators():
    """A resumed script draws on as if it had not stopped, dropout too, of which each rank draws its rows'."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 60), nn.Dropout(0.5), nn.Linear(60, 1)).to(DEVICE)
    loader = DataLoader(TensorDataset(torch.ones(8, 5)), 4)

    def drawn():
        return [model(x.to(DEVICE)).sum().item() for (x,) in loader] + torch.rand(2, device=DEVICE).tolist()

    drawn()
    states = torch.cuda.get_rng_state_all(), torch.get_rng_state()
    first = drawn()
    drawn()
    torch.cuda.set_rng_state_all(states[0])
    torch.set_rng_state(states[1])
    return [one - other for one, other in zip(first, drawn(), strict=True)]


def a_graph_of_attention():
    """One row for a whole graph: every rank computes all of it, and scatters with atomic additions on a GPU."""
    torch.manual_seed(0)
    first, last = nn.Linear(5, 8).to(DEVICE), nn.Linear(8, 3).to(DEVICE)
    optimizer, losses = torch.optim.Adam(itertools.chain(first.parameters(), last.parameters()), lr=0.01), []
    generator = torch.Generator().manual_seed(4)
    x, y = (
        torch.randn(30, 5, generator=generator).to(DEVICE),
        torch.randint(0, 3, (30,), generator=generator).to(DEVICE),
    )
    edges = torch.randint(0, 30, (2, 200), generator=generator).to(DEVICE)
    for _ in range(STEPS):
        hidden = first(x).relu()
        summed = torch.zeros_like(hidden).index_add_(0, edges[1], hidden[edges[0]])
        loss = F.cross_entropy(last(summed), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def a_table_on_the_host():
    """Beside layers on the accelerator, as recommenders have it; and a frozen layer there."""

    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.frozen = nn.Embedding(12, 6), nn.Linear(6, 6).requires_grad_(False)
            self.head = nn.Linear(6, 4).to(DEVICE)

        def forward(self, ids):
            return self.head(self.frozen(self.table(ids)).to(DEVICE).tanh())

    torch.manual_seed(0)
    model = Recommender()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    ids = torch.arange(24) % 12
    for x, y in DataLoader(TensorDataset(ids, ids % 4), 8):
        loss = F.cross_entropy(model(x), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, model.table.weight.sum().item(), model.head.weight.sum().item()]


class Sequences(nn.Module):
    """Dropout inside of attention or of a recurrent kernel, and TF32 or half precision in its products."""

    def __init__(self, kind):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)  # dropout 0.1
        self.kind, self.table, self.head = kind, nn.Embedding(20, 16), nn.Linear(16, 4)
        self.body = (
            nn.LSTM(16, 16, 2, dropout=0.3, batch_first=True)
            if kind == "recurrent"
            else nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        )

    def forward(self, ids):
        out = self.body(self.table(ids))
        return self.head((out[0] if self.kind == "recurrent" else out).mean(1))


KINDS_OF_SEQUENCES = ["attention", "attention in TF32", "attention in bfloat16", "recurrent"]


def what_is_not_split(kind):
    """What of a model does not run on rows, and how often something is gathered, while it is trained."""
    import ddp_patch

    torch.backends.cuda.matmul.allow_tf32 = kind == "attention in TF32"
    torch.manual_seed(0)
    model = Sequences(kind).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(240).view(40, 6) % 20
    for x, y in DataLoader(TensorDataset(ids, ids[:, 0] % 4), 8):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=kind == "attention in bfloat16"):
            loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ledger = ddp_patch.report().ledger
    return [sorted(ledger.on_batches), sorted(ledger.on_whole), ledger.collectives["all_gather"], ledger.rows[4]]


HABITS = [
    a_table_on_the_host,
    half_precision_with_a_scaler,
    bfloat16,
    channels_last,
    a_prefetcher_on_a_side_stream,
    recomputation_with_dropout,
    a_gradient_penalty_through_batch_norm,
    states_of_all_generators,
    a_graph_of_attention,
]
# Half precision keeps 11 and 8 bits: the order of additions shows.
TOLERANCES = {half_precision_with_a_scaler: 2**-11, bfloat16: 2**-8}
