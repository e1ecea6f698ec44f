"""Functions that have no rule: tried once, and on rows from then on. Counted: what ranks tell each other in a step."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Gamma, Normal
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.world import World
from ddp_patch.deciding.index_bounds import check_bounds


class Periods(nn.Module):
    """What the whole batch has most of says how each row is rolled, as in TimesNet and Autoformer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        spectrum = torch.fft.rfft(z, dim=1)
        strength = spectrum.abs().mean(0)
        for place in strength.topk(2)[1]:
            z = z + torch.roll(z, -int(place), -1) * spectrum.abs()[:, place].unsqueeze(1).repeat(1, z.shape[1])
        return self.last(torch.fft.irfft(spectrum * strength, n=8, dim=1) + z)


class Chosen(nn.Module):
    """Queries that are chosen for each row, as in Informer, in a forward that looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x)).view(len(x), 2, 4)
        z = z - z.mean(0)
        far = z[:, torch.tensor([[0], [1]]), torch.tensor([[0, 2], [1, 3]])].sum(-1, keepdim=True)
        top = (z * far).topk(2, sorted=False)[1]
        rows, heads = torch.arange(len(x))[:, None, None], torch.arange(2)[None, :, None]
        written = z.cumsum(-1)
        written[rows, heads, top] = z[rows, heads, top] * 2
        written[:, :, [0]] = z[..., 1:2]
        return self.last(torch.einsum("bqd,bkd->bqk", written, z).reshape(len(x), -1).repeat(1, 2))


class Patched(nn.Module):
    """Patches by keyword, and sizes that NumPy computed, in a forward that looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.patch, self.last = nn.Linear(6, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x):
        z = torch.tanh(self.first(x))
        parts = (z - z.mean(0)).unfold(dimension=-1, size=4, step=4)
        rows, count, length = np.array(parts.shape)
        return self.last(self.patch(torch.reshape(parts, (rows * count, length))).reshape(rows, count * length))


KINDS = {kind.__name__: kind for kind in (Periods, Chosen, Patched)}


def counts(kind):
    """Ranks' exchanges of rows and of objects in each step of a small training."""
    torch.manual_seed(0)
    model = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for x, y in DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), 8):
        before = dict(World.get().ledger.collectives)
        out = model(x)
        loss = F.cross_entropy(out, y) + torch.fft.rfft(out, dim=1).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after = World.get().ledger.collectives
        found.append([after[name] - before.get(name, 0) for name in ("all_gather", "all_gather_object")])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_that_looks_at_the_whole_batch_pays_for_that_function_alone(ranks, kind):
    for found in ranks.call(counts, 2, kind).ok().results:
        assert found[0][0] > 0  # they were tried
        assert [gathers for gathers, _ in found[4:]] == [0] * 4, found
        assert found[-1] == found[-2], found


class Kernels(nn.Module):
    """A kernel for each row, as groups of channels; features at lists of places; sums at places of time."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        kernels = self.first(x).tanh()
        h = F.conv1d(x.view(1, -1, 3), kernels.view(-1, 2, 3), padding=1, groups=len(x)).view(len(x), 3)
        sums = h.new_zeros(x.size(0), 6).index_add_(1, torch.tensor([0, 2, 2]), h)
        return self.last(sums[:, [0, 1, 0, 2, 1, 2]] * kernels[:, [5, 4, 3, 2, 1, 0]])


class Padded(nn.Module):
    """Compares a plain tensor with a batch, which Python asks first."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        lengths = x[:, 0].abs().long() + 1
        h = self.first(x).view(len(x), 6)
        return self.last(h * (torch.arange(6) < lengths[:, None]) * (torch.arange(6) != lengths[:, None]))


class OfAnySize(nn.Module):
    """Asks whether its batch is too large for a kernel, as diffusers does, and computes sizes by torch, as Longformer."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6, momentum=None)  # reads how many batches there were

    def forward(self, x):
        h = self.norm(self.first(x))
        if h.numel() * 2 > pow(2, 31):
            h = h.contiguous()
        pairs = h.view(h.size(0), torch.div(h.size(1), 2, rounding_mode="trunc"), 2)
        return self.last(pairs.tanh().flatten(1))


def on_batches(kind):
    model = globals()[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    ledger = ddp_patch.report().ledger
    return {**ledger.on_batches, **ledger.on_whole}


class Posed(nn.Module):
    """Writes to an identity for each row, as kornia does."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 2), nn.Linear(9, 3)

    def forward(self, x):
        pose = torch.eye(3)[None].repeat(x.shape[0], 1, 1)
        pose[:, :2, 2] = self.first(x)
        return self.last(pose.flatten(1) + torch.eye(3).flatten().expand(len(x), -1))


class Drawn(nn.Module):
    """Noise in the ways of timm's drop_path, ``torch.distributions``, RBMs and codes that are chosen."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        path = h * h.new_empty((h.shape[0],) + (1,) * (h.ndim - 1)).bernoulli_(0.7).div_(0.7)
        z = Normal(path, F.softplus(h)).rsample()
        code = F.gumbel_softmax(z, hard=True)
        spins = torch.bernoulli(h.sigmoid()) + h.sigmoid() - h.sigmoid().detach()
        word = Categorical(logits=h).sample()
        rate = Gamma(h.exp(), torch.ones(())).rsample() + torch.multinomial(h.softmax(1), 6, True)
        self.noise = torch.zeros(x.size(0), 6).normal_()
        return self.last(code * spins + rate + self.noise + torch.normal(h, 0.1)) + word[:, None]


class Asserting(nn.Module):
    """Says in an assertion how many rows there are, as torchvision's vision transformers do."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 3)

    def forward(self, x):
        torch._assert(x.dim() == 2, f"Expected rows of 6 entries, got {x.shape}")
        return self.first(x)


@pytest.mark.parametrize("kind", ["Kernels", "Drawn", "OfAnySize", "Padded", "Posed", "Asserting"])
def test_what_each_row_does_by_itself_stays_on_rows(ranks, kind):
    assert ranks.call(on_batches, 2, kind).ok().results == [{}, {}]


class Tied(nn.Module):
    """Computes weights that a trial compares: they are not of the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.factor = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        return F.cross_entropy(F.linear(x, self.first.weight * self.factor[:, None], self.first.bias), y)


def checkpointed():
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    for x, y in DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,))), 8):
        loss = checkpoint(model, x, y, use_reentrant=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append(loss.item())
    return told


def test_a_trial_keeps_nothing_for_a_checkpoint_around_the_call(ranks):
    (alone,) = ranks.call(checkpointed, 1).ok().results
    for told in ranks.call(checkpointed, 2).ok().results:
        assert told == pytest.approx(alone, rel=1e-6)


def first_draws():
    torch.manual_seed(0)
    model = Drawn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = []
    for x, y in DataLoader(TensorDataset(torch.randn(28, 6), torch.randint(0, 3, (28,))), 7):
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()
        told.append([out.sum().item(), model.noise.sum().item(), model.noise.std(0).min().item()])
    return told


def test_a_forward_that_draws_has_one_process_s_numbers_at_first_and_then_each_rank_its_own(ranks):
    (alone,) = ranks.call(first_draws, 1).ok().results
    first, other = ranks.call(first_draws, 2).ok().results
    assert first == other
    assert first[0] == pytest.approx(alone[0], rel=1e-5)
    assert first[3][1] != pytest.approx(alone[3][1])
    assert first[3][2] > 0  # no row has another's noise


def forms():
    """Call a function with another shape each time, as texts have."""
    for length in range(5000):
        ddp_patch.shard_batch(torch.ones(4, 1)).repeat(1, length % 3 + 1).diff(n=1, prepend=torch.zeros(4, length))
    tries = World.get().unruled_calls
    return len(tries._calls), len(tries._sighted)


@pytest.mark.slow
class Signed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign() + x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Signs(nn.Linear):
    def forward(self, x):
        return Signed.apply(super().forward(x))


def beside_garbage_of_one_rank():
    """A view that torch gives no node, such as garbage that Python has not collected on this rank yet."""
    torch.manual_seed(0)
    kept = []
    if ddp_patch.rank() == 1:
        base = torch.ones(3, 2, requires_grad=True) * 2
        with torch.no_grad():
            kept.append(base[0])
        base.mul_(2)
        with pytest.raises(RuntimeError, match="no_grad"):
            kept[0].is_leaf  # noqa: B018
    model = Signs(4, 2).double()
    for (x,) in DataLoader(TensorDataset(torch.randn(12, 4).double()), 6):
        model(x).square().mean().backward()
    return model.weight.grad.flatten().tolist(), [*ddp_patch.report().ledger.on_batches.values()]


def test_garbage_of_one_rank_changes_no_decision(ranks):
    ((wanted, _),) = ranks.call(beside_garbage_of_one_rank, 1).ok().results
    for seen, reasons in ranks.call(beside_garbage_of_one_rank, 3).ok().results:
        assert seen == pytest.approx(wanted, rel=1e-10)
        assert not reasons


def test_forms_of_calls_that_are_remembered_are_bounded(ranks):
    known, sighted = ranks.call(forms, 2).ok().results[0]
    assert known <= 4096
    assert sighted <= 4096


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("index", (torch.zeros(4, 3), [torch.tensor([0, 4])])),
        ("index", (torch.zeros(4, 3), [None, torch.tensor([-4])])),
        ("index_select", (torch.zeros(4, 3), 1, torch.tensor([3]))),
    ],
)
def test_a_trial_on_an_accelerator_survives_numbers_of_rows_of_the_whole_batch(name, args):
    with pytest.raises(IndexError, match="is out of bounds for"):
        check_bounds(name, args)
    check_bounds(name, (torch.zeros(5, 5), *args[1:]))
    check_bounds("index", (torch.zeros(4, 3), [torch.ones(4, 3, dtype=torch.bool)]))
