"""What a loss costs: its sum over the ranks travels with the gradients, and so does what becomes of losses."""

import functools
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from parity import loss_habits, sum_habits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.pending import PendingReduction
from ddp_patch.batch.world import World
from ddp_patch.gradients.assumption import Assumption


def squared(z):
    return F.mse_loss(z, torch.ones_like(z))


def one_by_one(z, y):
    loss = 0
    for column in range(3):
        loss += F.mse_loss(z[:, column], y.float())
    return loss


LOSSES = {  # name -> loss of outputs and classes, batches in a step, whether every rank has all rows, sums beside gradients
    "as it is": (F.cross_entropy, 1, False, 0),
    "of a view": (lambda z, y: F.cross_entropy(z.view(-1, 1, 3).transpose(1, 2), y.view(-1, 1)), 1, False, 0),
    "of what became of it": (lambda z, y: F.cross_entropy(z.relu() * 2, y), 1, False, 0),
    "divided": (lambda z, y: F.cross_entropy(z, y) / 2, 1, False, 0),
    "scaled": (lambda z, y: torch.tensor(8.0) * F.cross_entropy(z, y) * torch.tensor(8.0), 1, False, 1),
    "scaled by GradScaler": (lambda z, y: F.cross_entropy(z, y) * torch.tensor(8.0), 1, False, 0),
    "a sum": (lambda z, y: (squared(z) + 0.1 * squared(z * 2)) / 2, 1, False, 0),
    "a sum in place": (one_by_one, 1, False, 0),
    "a sum with classes": (lambda z, y: F.cross_entropy(z, y) + F.cross_entropy(z * 2, y) + squared(z), 1, False, 1),
    "stacked": (lambda z, y: torch.stack([F.cross_entropy(z, y), squared(z), squared(z * 2)]).sum(), 1, False, 1),
    "accumulated": (lambda z, y: squared(z) / 2, 2, False, 0),
    "accumulated classes": (lambda z, y: F.cross_entropy(z, y) / 2, 2, False, 2),  # of targets, of each batch
    "accumulated classes without a loader": (lambda z, y: F.cross_entropy(z, y) / 2, 2, True, 0),
}


def counted():
    """Train by each loss, and count the collectives of a steady step."""
    found = {}
    for name, (loss_of, every, is_plain, _) in LOSSES.items():
        ddp_patch.disable()
        ddp_patch.enable()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
        counts = []
        for step, (x, y) in enumerate((rows[i : i + 8] for i in range(0, 96, 8)) if is_plain else DataLoader(rows, 8)):
            loss_of(model(x), y).backward()
            if step % every == every - 1:
                optimizer.step()
                optimizer.zero_grad()
                counts.append(Counter(ddp_patch.report().ledger.collectives))
        found[name] = dict(counts[-1] - counts[-2])
    return found


@pytest.fixture(scope="module")
def collectives(ranks):
    """Of a step of each loss, on two ranks."""
    return functools.cache(lambda: ranks.call(counted, 2).ok().results)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_travels_with_the_gradients(collectives, name):
    sums = LOSSES[name][-1]
    for rank in collectives():
        assert rank[name] == {"gradient bucket": 1} | ({"all_reduce": sums} if sums else {})


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_count_is_assumed_only_where_looking_at_it_costs_no_wait(accelerated):
    """On an accelerator it would wait for the device in every step; a sum of eight bytes does not."""
    world = SimpleNamespace(looks_at_gradients=False, ledger=None, accelerated=accelerated)
    assumption = Assumption(world, SimpleNamespace(on_any=lambda parameters: False))
    sync = SimpleNamespace(may_be_scaled=lambda source: True, all=[])
    reduction = SimpleNamespace(has_count=True, expected=8.0, source=None, part=torch.empty(2))
    assert assumption.begin([sync], reduction, None) is (None if accelerated else sync)


class Routed(nn.Module):
    """Computes each word with the weight of the expert that it chooses, as a part of one parameter."""

    def __init__(self):
        super().__init__()
        self.gate, self.weight = nn.Linear(4, 2), nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for expert in range(2):
            row, place = torch.where(chosen == expert)
            out[row, place] = F.linear(x[row, place], self.weight[expert]).tanh()
        return out


def routed():
    """Train it with targets to ignore; and what ranks told each other in the last step."""
    torch.manual_seed(0)
    model = Routed().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.randn(48, 6, 4).double(), torch.randint(0, 4, (48, 6))
    y[:, 0] = y[::2, 1] = -100
    for rows, labels in DataLoader(TensorDataset(x, y), 12):
        told = dict(World.current.ledger.collective_bytes) if World.current else {}
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
    told = (
        {name: count - told.get(name, 0) for name, count in World.current.ledger.collective_bytes.items()}
        if told
        else {}
    )
    return loss.item(), model.weight.sum().item(), told.get("all_reduce", 0), told.get("all_gather", 0)


def test_parts_of_parameters_have_averaged_gradients_though_targets_are_ignored(ranks):
    wanted = routed()
    for *numbers, summed, gathered in ranks.call(routed, 2).ok().results:
        assert numbers == pytest.approx(wanted[:2], rel=1e-9)
        assert gathered == 0
        assert summed <= 64  # bytes: how many words choose an expert, and how many targets there are


def below_overrides():
    """Give what code sees that takes a loss for a number below torch's functions."""
    (x, y) = next(iter(DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(0, 3, (8,))), 8)))
    loss = F.cross_entropy(x, y)
    return torch.add(torch.ones(2), torch.ones(2), alpha=loss).tolist()


def test_what_cannot_wait_for_a_loss_sees_no_number(ranks):
    for seen in ranks.call(below_overrides, 2).ok().results:
        assert all(value != value for value in seen)


class Fixed(torch.autograd.Function):
    """Passes a value on, and no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


SOURCES = {  # what a loss is computed of
    "a view": lambda z: z.view(-1, 3),
    "half of it": lambda z: torch.cat([z[:, :2], z[:, 2:] * 2], 1),
    "what passes no gradient on": lambda z: Fixed.apply(z) + 0 * z.detach(),
}


def ignoring(kind):
    """Train on targets of which some are ignored, more of them on one rank; the losses and gradients of each step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.randint(0, 3, (40,))
    targets[::5] = targets[1::5] = -100
    said = []
    for x, y in DataLoader(TensorDataset(torch.randn(40, 4).double(), targets), 10):
        loss = F.cross_entropy(SOURCES[kind](model(x)), y)
        optimizer.zero_grad()
        loss.backward()
        grad = model.weight.grad
        said.append([loss.item(), None if grad is None else grad.sum(1).tolist()])
        optimizer.step()
    return said


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_a_loss_of_what_became_of_outputs_ignores_targets(ranks, kind):
    (wanted,) = ranks.call(ignoring, 1, kind).ok().results
    for nproc in (2, 3, 4):
        for seen in ranks.call(ignoring, nproc, kind).ok().results:
            for (loss, grad), (its_loss, its_grad) in zip(seen, wanted, strict=True):
                assert loss == pytest.approx(its_loss, rel=1e-10)
                assert grad == (None if its_grad is None else pytest.approx(its_grad, rel=1e-9, abs=1e-12))


def read_at_the_end():
    """Losses that nobody looks at before the last step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for x, y in DataLoader(TensorDataset(torch.randn(40, 4).double(), torch.randint(0, 3, (40,))), 8):
        loss = F.cross_entropy(model(x).view(-1, 3), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return [loss.item() for loss in losses]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_what_travelled_with_a_bucket_is_not_written_over_by_the_next(ranks, shared):
    """With ``gradient_as_bucket_view`` the memory that the loss came in is the next step's."""
    (wanted,) = ranks.call(read_at_the_end, 1).ok().results
    for seen in ranks.call(read_at_the_end, 3, enable={"gradient_as_bucket_view": shared}).ok().results:
        assert seen == pytest.approx(wanted, rel=1e-12)


def parted(kind, alone, takes_part):
    """Train, where the loss of one rank's last backward comes by another way than the others'."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(40, 4).double(), torch.arange(40) % 3), 10)):
        if step == 3 and (ddp_patch.rank() == alone) is not takes_part:
            PendingReduction.source = None
        loss = squared(model(x)) if kind == "mse" else F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("summed", loss.item())


@pytest.mark.parametrize(("kind", "what"), [("mse", "the last gradients"), ("classes", "a sum over the ranks")])
@pytest.mark.parametrize(("nproc", "alone", "takes_part"), [(2, 1, True), (3, 1, False), (4, 0, True)])
def test_a_loss_that_travels_on_some_ranks_alone_is_refused_on_every_rank(ranks, kind, what, nproc, alone, takes_part):
    outcome = ranks.call(parted, nproc, kind, alone, takes_part)
    assert outcome.stdout[0].count("summed") == 3
    (said,) = re.findall(r"LockstepError: (.*), so the ranks do not run the same program", "\n".join(outcome.stderr))
    assert f"to {what} in test_losses.py" in said
    assert re.search(r"to the last gradients and [12] number\(s\) of losses in test_losses\.py", said)


def looked_at_late():
    """A loss that a person asks for at a prompt, where ranks cannot sum; losses that outlive the session."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ((x,),) = DataLoader(TensorDataset(torch.randn(6, 3)), 6)
    summed, asked, unasked = (model(x).pow(2).mean() for _ in range(3))
    summed.backward()
    optimizer.step()
    World.current.is_prompting = True
    names = dir(asked)
    with pytest.raises(ddp_patch.BatchError):
        asked.item()
    World.current.is_prompting = False
    said = ["backward" in names, asked.item()]
    ddp_patch.disable()
    said += [f"{summed:.6f}", summed.item()]
    for _ in range(2):
        with pytest.raises(ddp_patch.BatchError, match=r"value = loss.item\(\)"):
            unasked.item()
    return said


def test_a_loss_that_cannot_be_summed_now_is_no_number(ranks):
    for has_names, asked, text, summed in ranks.call(looked_at_late, 2).ok().results:
        assert has_names
        assert asked == summed == pytest.approx(float(text), abs=1e-6)


def computed_on_batches():
    found = {}
    for habit in (*loss_habits.ON_ROWS, *sum_habits.ON_ROWS):
        ddp_patch.disable()
        ddp_patch.enable()
        torch.manual_seed(0)
        habit()
        found[habit.__name__] = [*ddp_patch.report().ledger.on_batches]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_losses_and_sums_in_a_forward_leave_it_on_rows(ranks, nproc):
    for found in ranks.call(computed_on_batches, nproc).ok().results:
        assert found == {habit.__name__: [] for habit in (*loss_habits.ON_ROWS, *sum_habits.ON_ROWS)}


def reasons_of_a_sum_by_the_number_of_rows():
    sum_habits.a_sum_by_the_number_of_rows()
    return [*ddp_patch.report().ledger.on_batches.values()]


def test_a_sum_by_the_number_of_rows_is_told_apart(ranks):
    for found in ranks.call(reasons_of_a_sum_by_the_number_of_rows, 2).ok().results:
        assert [reason.partition(", which")[0] for reason in found] == ["its forward computes with the number of rows"]
