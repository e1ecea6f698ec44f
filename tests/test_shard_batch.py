"""ddp_patch.shard_batch: a batch out of tensors that no loader made."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import ddp_patch


def get_batch(g, size=10):
    x = torch.randn(size, 3, generator=g, dtype=torch.float64)
    return {"x": x, "y": x.sum(1), "t": (x.t(),), "note": "text", "scale": torch.tensor(2.0)}


def train():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = nn.Linear(3, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for size in (10, 10, 7, 1):
        batch = ddp_patch.shard_batch({k: v for k, v in get_batch(g, size).items() if k != "t"})
        loss = F.mse_loss(model(batch["x"]).squeeze(1), batch["y"]) * batch["scale"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said += [loss.item(), float(batch["x"].shape[0])]
    return said + model.weight.flatten().tolist()


def rows_computed():
    train()
    return sorted(ddp_patch.report().ledger.rows.items())


def sequence_first():
    g = torch.Generator().manual_seed(1)
    x = ddp_patch.shard_batch(get_batch(g)["t"], dim=1)[0]
    return [list(x.shape), type(x).__qualname__, x.sum(0).tolist()]


def written():
    rows, said = torch.ones(4, 2), []
    for _ in range(2):
        batch = ddp_patch.shard_batch(rows)
        batch.mul_(2)
        batch[1] = 5
        said += [batch.sum().item(), rows.sum().item()]
    return said


def refused(kind):
    try:
        if kind == "sizes":
            ddp_patch.shard_batch([torch.zeros(4, 2), torch.zeros(5, 2)])
        elif kind == "ranks":
            ddp_patch.shard_batch({"x": torch.zeros(4), "y": torch.full((4, 2), float(ddp_patch.rank()))})
        elif kind == "dim":
            ddp_patch.shard_batch(torch.zeros(4), dim=1)
        else:
            ddp_patch.shard_batch(["text", torch.tensor(1.0)])
    except ddp_patch.DdpPatchError as error:
        return str(error)
    return ""


def test_alone_it_gives_back_what_it_got():
    data = [torch.zeros(4, 2), "text"]
    assert ddp_patch.shard_batch(data) is data


def test_what_is_written_to_a_batch_is_in_the_tensor_that_it_was_made_of(ranks):
    wanted = written()
    assert ranks.call(written, 2).ok().results == [wanted, wanted]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3, 4])
def test_training_on_dealt_tensors_is_that_of_one_process(ranks, nproc):
    wanted = train()
    for result in ranks.call(train, nproc).ok().results:
        assert result == pytest.approx(wanted, rel=1e-9)


def test_each_rank_computes_its_own_rows(ranks):
    # Batches of 10, 10 and 7 rows; one of a single row is whole on every rank and counts as none.
    assert ranks.call(rows_computed, 2).ok().results == [[[4, 1], [5, 2]], [[3, 1], [5, 2]]]


def test_the_batch_dimension_can_be_another(ranks):
    x = get_batch(torch.Generator().manual_seed(1))["t"][0]
    for shape, kind, values in ranks.call(sequence_first, 2).ok().results:
        assert shape == [3, 10]
        assert kind == "BatchTensor"
        assert values == pytest.approx(x.sum(0).tolist())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sizes", "4 in data[0], 5 in data[1]"),
        ("dim", "of shape (4,) has no such dimension"),
        ("ranks", "data['y'] begins with [0.0, 0.0, 0.0] on rank 0, [1.0, 1.0, 1.0] on rank 1"),
        ("nothing", "without a tensor that has rows"),
    ],
)
def test_what_is_no_batch_is_refused(ranks, kind, words):
    for result in ranks.call(refused, 2, kind).ok().results:
        assert words in result


@pytest.mark.parametrize(("old", "new"), [("deal", "shard_batch"), ("whole", "read_once")])
def test_old_names_still_do_it_and_say_so(old, new):
    loader = DataLoader(torch.arange(4))
    with pytest.warns(DeprecationWarning, match=f"ddp_patch.{old}.* is ddp_patch.{new}"):
        assert getattr(ddp_patch, old)(loader) is loader
