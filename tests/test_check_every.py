"""check_every=n: ranks whose parameters or gradients have parted are told so, at little cost."""

import pytest
import torch
import torch.nn.functional as F
from local.habits import mlp, rows, weights
from torch import nn
from torch.utils.data import DataLoader

import ddp_patch

VIEWS = ["global", "local"]


def steps(
    change=lambda step, model: None, epochs=3, optimizer_of=lambda model: torch.optim.SGD(model.parameters(), 0.1)
):
    model = mlp()
    optimizer = optimizer_of(model)
    step = 0
    for _ in range(epochs):
        for x, y in DataLoader(rows(48), 12):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            step += 1
            change(step, model)
            optimizer.step()
    ledger = ddp_patch.report().ledger
    return weights(model), dict(ledger.collectives), dict(ledger.collective_bytes), ledger.compared


def sums(found):
    return found.get("all_reduce", 0)


# --- left alone -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("nproc", [2, 3])
def test_equal_ranks_compute_as_ever_for_one_small_sum_every_n_steps(ranks, view, nproc):
    without = ranks.call(steps, nproc, enable={"view": view}).ok().results
    found = ranks.call(steps, nproc, enable={"view": view, "check_every": 5}).ok().results
    for (plain, counts, sent, _), (same, more, larger, compared) in zip(without, found, strict=True):
        assert same == plain
        assert compared == 2  # of 12 steps
        assert sums(more) == sums(counts) + 2
        assert larger["all_reduce"] == sent.get("all_reduce", 0) + 2 * 8 * nproc
        assert {name: n for name, n in more.items() if name != "all_reduce"} == {
            name: n for name, n in counts.items() if name != "all_reduce"
        }


def everything():
    """Parameters of every kind, some without a gradient."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(7, 4, sparse=True),
            "head": nn.Linear(4, 2).to(torch.bfloat16),
            "unused": nn.Linear(3, 3),
        }
    )
    model.empty = nn.Parameter(torch.zeros(0))
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        hidden = model["head"](model["words"](torch.arange(6)).to(torch.bfloat16)).float()
        optimizer.zero_grad()
        (hidden.square().mean() + model.phase.abs().sum()).backward()
        optimizer.step()
    return ddp_patch.report().ledger.compared


def test_parameters_of_every_kind_are_compared(ranks):
    assert ranks.call(everything, 2, enable={"check_every": 1}).ok().results == [3, 3]


def two_optimizers():
    model = mlp()
    optimizers = [torch.optim.SGD(layer.parameters(), 0.1) for layer in (model[0], model[2])]
    for x, y in DataLoader(rows(48), 12):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    return ddp_patch.report().ledger.compared, str(ddp_patch.report())


def test_each_optimizer_has_its_own_count_and_the_report_says_so(ranks):
    for compared, report in ranks.call(two_optimizers, 2, enable={"check_every": 2}).ok().results:
        assert compared == 4  # steps 2 and 4 of both
        assert "4 times parameters and gradients were compared: they were equal on all ranks" in report


# --- what has parted is named -----------------------------------------------------------------------------------------------


def a_parameter_drifts(step, model):
    if step == 4 and ddp_patch.rank() == 1:
        model[2].bias.data[0] += 1e-12


def entries_change_places(step, model):
    if step == 4 and ddp_patch.rank() == 1:
        model[0].weight.data[:2] = model[0].weight.data[:2].flip(0).clone()


def opposite_digits(step, model):
    """A sum of bits would not see it."""
    if step == 4 and ddp_patch.rank() == 1:
        bits = model[0].weight.data.view(torch.int64)
        bits[0, 0] += 1
        bits[0, 1] -= 1


def a_gradient_differs(step, model):
    if step == 4 and ddp_patch.rank() == 1:
        model[0].bias.grad[3] *= 2


def a_gradient_is_gone(step, model):
    if step == 4 and ddp_patch.rank() == 1:
        model[0].bias.grad = None


PARTED = {
    a_parameter_drifts: "'2.bias' of Sequential",
    entries_change_places: "'0.weight' of Sequential",
    opposite_digits: "'0.weight' of Sequential",
    a_gradient_differs: "the gradient of '0.bias' of Sequential",
    a_gradient_is_gone: "the gradient of '0.bias' of Sequential",
}


class Several(torch.optim.Optimizer):
    """Several as one, with groups of its own or without."""

    def __init__(self, optimizers, groups=None):
        super().__init__(groups or [nn.Parameter(torch.zeros(1))], {})
        self.optimizers = optimizers
        if groups is None:
            self.param_groups.clear()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def several(model):
    return Several([torch.optim.SGD(layer.parameters(), 0.1) for layer in model if len([*layer.parameters()])])


def one_around_all(model):
    inner = torch.optim.SGD(model.parameters(), 0.1)
    return Several([inner], inner.param_groups)


def made_of_others():
    compared = [steps(optimizer_of=made)[-1] for made in (several, one_around_all)]
    try:
        steps(a_parameter_drifts, optimizer_of=several)
    except ddp_patch.LockstepError as error:
        return compared, str(error)


@pytest.mark.parametrize("view", VIEWS)
def test_what_an_optimizer_made_of_others_trains_is_compared_once(ranks, view):
    for compared, said in ranks.call(made_of_others, 2, enable={"view": view, "check_every": 2}).ok().results:
        assert compared == [12, 12 + 6]  # two of 12 steps, every second time; then one around all of them
        assert ": '2.bias' of Sequential differs between ranks before step 4 of SGD (" in said


def told():
    said = []
    for change in PARTED:
        try:
            steps(change)
        except ddp_patch.LockstepError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("view", VIEWS)
def test_the_first_parameter_that_differs_is_named_on_every_rank(ranks, view):
    by_rank = ranks.call(told, 3, enable={"view": view, "check_every": 2}).ok().results
    assert by_rank[0] == by_rank[1] == by_rank[2]
    assert len(by_rank[0]) == len(PARTED)
    for said, name in zip(by_rank[0], PARTED.values(), strict=True):
        assert f": {name} differs between ranks before step 4 of SGD (" in said
        assert " on ranks 0, 2; " in said
        assert " on rank 1), as check_every=2 found" in said
