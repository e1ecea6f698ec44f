"""Plain tensors that ranks deal without a loader: what the ranks hold has to be the same, in every step."""

import multiprocessing
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.dealt_tensors import LENGTH, DealtTensors


def trained(at, how, dtype="float64", steps=6):
    """Train on tensors that differ between ranks from a step on, and tell the losses until then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(getattr(torch, dtype))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(steps):
        x = torch.randn(8, 3, dtype=getattr(torch, dtype))
        if step == at and ddp_patch.rank() == 1:
            if how == "last row":
                x[-1] += 1
            elif how == "rounding":
                x *= 1 + torch.finfo(x.dtype).eps
            elif how == "order":
                x = x.flip(0)
            elif how == "nan":
                x[0] = torch.nan
        if step == at and how == "evaluation":
            model.eval()
            for _ in range(30):
                model(x + (ddp_patch.rank() if _ == 0 else 0))
            model.train()
        try:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
        except ddp_patch.errors.LockstepError as error:
            return [losses, str(error), "", at]
        optimizer.step()
        losses.append(loss.item())
    return [losses, "", str(ddp_patch.report()), steps]


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("how", ["last row", "order", "nan"])
def test_a_later_batch_that_differs_is_refused_on_every_rank(ranks, how, nproc):
    results = ranks.call(trained, nproc, 3, how).ok().results
    for losses, error, *_ in results:
        assert len(losses) == 3
        assert "argument [0][0] of Sequential begins with" in error
        assert "on rank 0" in error
        assert "on rank 1" in error
        assert "differs between ranks" in error
    assert len({str(result) for result in results}) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_what_differs_by_rounding_is_taken_and_told(ranks, dtype):
    for _, error, report, steps in ranks.call(trained, 2, 2, "rounding", dtype).ok().results:
        assert not error
        assert steps == 6
        assert "plain tensors of the script differ between ranks by rounding" in report


def test_what_only_an_evaluation_was_given_is_told_with_the_next_gradients(ranks):
    for losses, error, *_ in ranks.call(trained, 2, 2, "evaluation").ok().results:
        assert len(losses) == 2
        assert "what a model was given in an earlier call" in error


def told(dealt, divides_first):
    """What ranks tell each other, averaged: each divides what it sends, or the sum is divided."""
    places = torch.ones(len(dealt), LENGTH)
    for place, own in zip(places, dealt, strict=True):
        own.write(place, len(dealt))
    total = torch.zeros(LENGTH)
    for place in places:
        total += place / len(dealt) if divides_first else place
    return total if divides_first else total / len(dealt)


def given(value):
    dealt = DealtTensors()
    dealt.note([("x", torch.full((4, 2), value))])
    dealt.settle()
    return dealt


class Told(Exception):
    """All ranks would compare."""


class Ranks:
    def __init__(self, size):
        self.size = size

    def share(self, values):
        raise Told


@pytest.mark.parametrize("divides_first", [True, False])
@pytest.mark.parametrize("size", [2, 3, 5, 7, 64, 100, 512])
def test_ranks_find_alike_whether_they_hold_the_same(size, divides_first):
    for value in torch.randn(20).tolist():
        for others in (0, 1, size // 2, size - 1):
            dealt = [given(value + 1)] * others + [given(value)] * (size - others)
            dealt[0].arrived(told(dealt, divides_first))
            if others:
                with pytest.raises(Told):
                    dealt[0].check(Ranks(size))
            else:
                dealt[0].check(Ranks(size))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 0),
        torch.ones(5, dtype=torch.bool),
        torch.ones(4, 3, dtype=torch.complex64).conj(),
        torch.zeros(4, 2, dtype=torch.bfloat16),
        torch.arange(6).view(2, 3).t(),
        torch.eye(3).to_sparse(),
        torch.randn(3, 64, 64, 64).to(memory_format=torch.channels_last),
        torch.ones(4, dtype=torch.float8_e4m3fn),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}",
)
def test_tensors_of_any_kind_are_noted(tensor):
    dealt = DealtTensors()
    dealt.note([("x", tensor)])
    dealt.settle()


class Filling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, scratch):
        scratch.copy_(x).mul_(2)
        return self.layer(x + scratch)


def given_scratch():
    torch.manual_seed(0)
    model = Filling()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sums = []
    for _ in range(5):
        scratch = torch.full((8, 3), float(ddp_patch.rank()))  # as uninitialised memory holds anything
        loss = model(torch.randn(8, 3), scratch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums.append([loss.item(), scratch.sum().item()])
    return sums


def test_what_a_forward_writes_to_may_have_held_anything(ranks):
    one, other = ranks.call(given_scratch, 2).ok().results
    assert one == other


def produce(queue, seed):
    numbers = random.Random(seed)
    for _ in range(12):
        queue.put([[numbers.random() for _ in range(3)] for _ in range(8)])


def fed_by_processes(reads_once):
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=4)
    producers = [context.Process(target=produce, args=(queue, seed), daemon=True) for seed in range(3)]
    for process in producers:
        process.start()
    get = ddp_patch.read_once(queue.get) if reads_once else queue.get
    torch.manual_seed(0)
    model = nn.Linear(3, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sums = []
    for _ in range(20):
        x = torch.tensor(get(timeout=60), dtype=torch.float64)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums.append([x.sum().item(), loss.item()])
    for process in producers:
        process.terminate()
    return sums


def test_what_processes_put_into_a_queue_is_rank_zeros(ranks):
    results = ranks.call(fed_by_processes, 3, True).ok().results
    assert results[0] == results[1] == results[2]


def fails_at_rank_zero():
    def read():
        raise KeyError(f"of rank {ddp_patch.rank()}")

    try:
        ddp_patch.read_once(read)()
    except KeyError as error:
        return str(error)


def test_what_rank_zero_raises_all_raise(ranks):
    assert ranks.call(fails_at_rank_zero, 2).ok().results == ["'of rank 0'"] * 2


def draws():
    def read():
        return [random.random(), torch.rand(2)]

    torch.manual_seed(0)
    random.seed(0)
    first = ddp_patch.read_once(read)()
    return [first[0], *first[1].tolist(), torch.rand(2).tolist(), random.random()]


def test_what_is_drawn_at_rank_zero_is_drawn_at_all(ranks):
    one, other = ranks.call(draws, 2).ok().results
    assert one == other


def alone():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(4):
        loss = model(torch.randn(8, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with ddp_patch.per_rank(), torch.no_grad():
            model(torch.full((4 + ddp_patch.rank(), 3), float(ddp_patch.rank())))
    return losses


def test_what_ranks_give_a_model_by_themselves_is_not_compared(ranks):
    one, other = ranks.call(alone, 2).ok().results
    assert one == other


def signed_zeros():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.zeros(8, 3) * (1 - 2 * ddp_patch.rank())).mean().backward()
        optimizer.step()
    return str(ddp_patch.report())


def test_zeros_of_other_signs_differ_by_rounding(ranks):
    for report in ranks.call(signed_zeros, 2).ok().results:
        assert "plain tensors of the script differ between ranks by rounding" in report


def scored(by_argument):
    """An external scorer is given batches and losses, or takes them from around it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, dtype=torch.float64)
    found = []
    for (x,) in DataLoader(TensorDataset(torch.randn(12, 4, dtype=torch.float64)), batch_size=6):
        out = model(x)
        loss = out.square().mean()
        score = ddp_patch.read_once(
            lambda *given, held=(out, loss): [float(one.detach().numpy().sum()) for one in given or held]
        )
        try:
            found.append(score(out, loss) if by_argument else score())
        except ddp_patch.BatchError as error:
            found.append(str(error))
        found.append(out.sum().item())
    return found


def test_a_function_of_rank_zero_gets_whole_batches(ranks):
    wanted = scored(True)
    for found in ranks.call(scored, 3, True).ok().results:
        for its, one in zip(found, wanted, strict=True):
            assert its == pytest.approx(one)


def test_a_function_of_rank_zero_that_takes_a_batch_by_itself_is_refused_on_all(ranks):
    wanted = scored(True)
    for found in ranks.call(scored, 3, False).ok().results:
        assert all("Give it the batch as an argument" in said for said in found[::2])
        assert found[1::2] == pytest.approx(wanted[1::2])


def test_without_ranks_a_function_is_called_as_it_is():
    assert ddp_patch.read_once(divmod)(7, 2) == (3, 1)
    with pytest.raises(ddp_patch.errors.OptionError, match="or a function such as"):
        ddp_patch.read_once(3)
