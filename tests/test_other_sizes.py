"""Batches of other sizes: a model that asks for none is decided on once; what depends on the size is as on one process."""

import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ddp_patch


class Net(nn.Module):
    def __init__(self, body, *layers):
        super().__init__()
        self.body, self.layers = body, nn.ModuleList(layers)

    def forward(self, x):
        return self.body(self.layers, x)


def linear():
    return nn.Linear(4, 4)


# name -> what it does with the rows, its layers, and the shape of a row. The first sizes are 8, 12, 16.
ASK_NOTHING = {
    "residual": (lambda m, x: x + m[0](x), [linear], (4,)),
    "numbers": (lambda m, x: m[0](x) * 2 + 1, [linear], (4,)),
    "positions": (lambda m, x: m[0](x) + m[1].weight, [linear, lambda: nn.Embedding(3, 4)], (3, 4)),
    "flatten": (
        lambda m, x: m[1](m[0](x).flatten(1)),
        [lambda: nn.Conv2d(1, 2, 3), lambda: nn.Linear(8, 2)],
        (1, 4, 4),
    ),
    "view": (lambda m, x: m[1](m[0](x).view(-1, 8)), [lambda: nn.Conv2d(1, 2, 3), lambda: nn.Linear(8, 2)], (1, 4, 4)),
    "cat": (lambda m, x: torch.cat([x, m[0](x)], 1), [linear], (4,)),
    "stack": (lambda m, x: torch.stack([x, m[0](x)], 1), [linear], (4,)),
    "products": (lambda m, x: m[0](x) @ x.transpose(1, 2), [linear], (3, 4)),
    "turned": (lambda m, x: m[0](x).unsqueeze(1).squeeze(1).contiguous().clone(), [linear], (4,)),
    "masks": (lambda m, x: torch.where(x > 0, x, m[0](x)).masked_fill(x < -1, 0.0), [linear], (4,)),
    "encoder": (lambda m, x: m[0](x), [lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)], (3, 4)),
    "recurrent": (lambda m, x: m[0](x)[0][:, -1] + x[:, 0], [lambda: nn.LSTM(4, 4, batch_first=True)], (3, 4)),
    "normalised": (lambda m, x: x + m[0](x), [lambda: nn.BatchNorm1d(4)], (4,)),
    "made like it": (lambda m, x: m[0](x) + torch.zeros_like(x), [linear], (4,)),
}
OTHERS = {
    "eight rows": (lambda m, x: m[0](x).view(8, -1), [linear], (4,)),
    "eight groups": (lambda m, x: m[0](x).reshape(8, -1, 2).sum(1), [linear], (4,)),
    "the first eight": (lambda m, x: m[0](x)[:8] * 2, [linear], (4,)),
    "the first ten": (lambda m, x: (m[0](x) + x)[:10], [linear], (4,)),
    "the last ten": (lambda m, x: (m[0](x) + x)[-10:], [linear], (4,)),
    "pieces of ten": (lambda m, x: (m[0](x) + x).split(10)[0], [linear], (4,)),
    "pairs": (lambda m, x: (m[0](x) + x).view(-1, 2, 4).sum(1), [linear], (4,)),
    "pairs that are parted again": (
        lambda m, x: (m[0](x) + x).reshape(-1, 2, 4).softmax(1).flatten(0, 1),
        [linear],
        (4,),
    ),
    "pairs by unflatten": (lambda m, x: (m[0](x) + x).unflatten(0, (-1, 2)).flatten(0, 1), [linear], (4,)),
    "rows and times": (lambda m, x: m[0](x.view(-1, 4)).view(-1, 2, 4).sum(1), [linear], (2, 4)),
    "times and rows": (lambda m, x: m[0](x.transpose(0, 1).reshape(-1, 4)).view(2, -1, 4)[0], [linear], (2, 4)),
    "twice": (lambda m, x: (m[0](x) + x).repeat(2, 1).view(2, -1, 4)[1], [linear], (4,)),
    "each twice": (lambda m, x: (m[0](x) + x).repeat_interleave(2, 0).view(-1, 2, 4)[:, 0], [linear], (4,)),
    "transposed": (lambda m, x: (m[0](x) + x).t().contiguous().view(4, -1).t(), [linear], (4,)),
    "halves": (lambda m, x: sum((m[0](x) + x).chunk(2, 0)), [linear], (4,)),
    "rolled": (lambda m, x: (m[0](x) + x).roll(8, 0), [linear], (4,)),
    "by index": (lambda m, x: (m[0](x) + x)[torch.arange(8)], [linear], (4,)),
    "rows of a table": (lambda m, x: x + m[0](x) * m[1].weight.mean(0), [linear, lambda: nn.Embedding(8, 4)], (4,)),
    "running sums": (lambda m, x: (m[0](x) + x).view(-1, 2, 2).cumsum(0).flatten(1), [linear], (4,)),
}
# Code of an installed package, which asks for the size; its folder is named as torchvision's is, beside torch's.
PACKAGE = {"__name__": "torchnets"}
exec(
    compile(
        "def centred(z):\n    return z - z.mean(0) if len(z) == 12 else z\n",
        f"{Path(torch.__file__).parent}nets/layers.py",
        "exec",
    ),
    PACKAGE,
)
OTHERS["asked by a package"] = (lambda m, x: PACKAGE["centred"](m[0](x) + x), [linear], (4,))
# Ways to ask for the number of rows: what is asked is true of twelve.
ASKS = {
    "len": lambda z: len(z) == 12,
    "size": lambda z: z.size(0) == 12,
    "sizes": lambda z: z.size() == (12, 4),
    "shape": lambda z: z.shape[0] == 12,
    "numel": lambda z: z.numel() == 48,
    "torch.numel": lambda z: torch.numel(z) == 48,
    "nelement": lambda z: z.nelement() == 48,
    "nbytes": lambda z: z.nbytes == 48 * 8,
    "stride": lambda z: z.unsqueeze(1).transpose(0, 1).contiguous().stride(0) == 48,
    "is_same_size": lambda z: z.is_same_size(torch.empty(12, 4)),
    "iteration": lambda z: sum(1 for _ in z) == 12,
    "unbind": lambda z: len(z.unbind()) == 12,
    "enumerate": lambda z: max(index for index, _ in enumerate(z)) == 11,
    "new_zeros": lambda z: z.new_zeros(z.shape).sum(1).add(1).sum() == 12,
}


def centred(asks):
    return lambda m, x: (lambda z: z - z.mean(0) if asks(z) else z)(m[0](x))


OTHERS |= {f"asks by {name}": (centred(asks), [linear], (4,)) for name, asks in ASKS.items()}
SIZES = {"eight first": (8, 12, 16, 8, 12), "twelve first": (12, 8, 16, 12, 10)}


def trained(sizes):
    """Losses and gradients by net, and how many calls were decided on."""
    from ddp_patch.deciding.decisions import SplitDecisions

    decided, real = [], SplitDecisions.first_call
    SplitDecisions.first_call = functools.wraps(real)(lambda *args: [decided.append(1), real(*args)][1])
    torch.set_default_dtype(torch.float64)
    said = {}
    for name, (body, layers, shape) in {**ASK_NOTHING, **OTHERS}.items():
        torch.manual_seed(0)
        model, found = Net(body, *(make() for make in layers)), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        decided.clear()
        for size in sizes:
            optimizer.zero_grad()
            x = torch.randn(size, *shape)
            if name == "eight groups" and size % 4:
                continue  # an error on one process too
            y = model(x)
            loss = F.softplus(y).mean() + y[:3].square().mean() + y[-1].mean()
            loss.backward()
            optimizer.step()
            found += [loss.item(), *y.shape]
        said[name] = [found, len(decided)]
    SplitDecisions.first_call = real
    ddp_patch.disable()
    return said


@pytest.fixture(scope="module")
def alone(ranks):
    return functools.cache(lambda sizes: ranks.call(trained, 1, SIZES[sizes]).ok().results[0])


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_model_that_asks_for_no_size_is_decided_on_once(ranks, alone, sizes, nproc):
    wanted = alone(sizes)
    for given in ranks.call(trained, nproc, SIZES[sizes]).ok().results:
        for name, (found, decided) in given.items():
            assert found == pytest.approx(wanted[name][0], rel=1e-9), name
            assert name not in ASK_NOTHING or decided == 1, name


def of_three_rows():
    """Where one rank has a single row and another has two, a rank's strides do not tell the batch's."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    model = Net(lambda m, x: m[0](x).transpose(0, 1).contiguous().transpose(0, 1).reshape(-1, 2), body)
    found = []
    for _ in range(3):
        loss = model(torch.randn(3, 1, 4, 4)).square().mean()
        loss.backward()
        found.append(loss.item())
    ledger = ddp_patch.report().ledger
    return found, [*ledger.on_batches.values(), *ledger.on_whole.values()]


def test_a_rank_of_one_row_and_another_of_two_compute_rows(ranks):
    ((wanted, _),) = ranks.call(of_three_rows, 1).ok().results
    for found, others in ranks.call(of_three_rows, 2).ok().results:
        assert found == pytest.approx(wanted, rel=1e-5)
        assert others == []


def before_training():
    """Call two models in turn that nobody has trained yet; the exchanges of these calls."""
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    kept = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.1)
    sent = ddp_patch.report().ledger.collectives
    counts = []
    with torch.no_grad():
        for _ in range(10):
            actor(torch.randn(8, 4)).sum().item(), critic(torch.randn(8, 4)).sum().item()
            counts.append(sent["all_gather_object"])
    return counts, len(kept.param_groups)


def test_models_that_were_not_trained_yet_stay_found(ranks):
    for counts, _ in ranks.call(before_training, 2).ok().results:
        assert counts[-1] == counts[1]
