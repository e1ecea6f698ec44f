"""What deciding how a model is computed asks of memory, and what becomes of a machine that has none left."""

import os
import time

import pytest
import torch
import torch.nn.functional as F
from parity.habits import data
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ddp_patch
from ddp_patch.deciding.copies import trial_copy


class Crowded(torch.autograd.Function):
    """Fits only so many rows: as memory's, that is no state which the code reads."""

    @staticmethod
    def forward(ctx, x):
        return fitting(x, "ROWS_THAT_FIT")

    @staticmethod
    def backward(ctx, grad):
        return fitting(grad, "ROWS_THAT_FIT_BACK" if "ROWS_THAT_FIT_BACK" in os.environ else "ROWS_THAT_FIT")


def fitting(rows, name):
    if len(rows) > int(os.environ.get(name, "8")):
        raise getattr(torch, os.environ.get("ERROR_OF_MEMORY", "OutOfMemoryError"))(f"{len(rows)} rows")
    return rows.clone()


class Net(nn.Module):
    def __init__(self, most, at=0):
        super().__init__()
        self.first, self.last, self.most, self.calls, self.at = nn.Linear(4, 6), nn.Linear(6, 3), most, [0], at

    def forward(self, x):
        if self.at:
            self.calls[0] += 1
        os.environ["ROWS_THAT_FIT"] = str(self.most if self.calls[0] >= self.at else 8)
        return self.last(Crowded.apply(self.first(x)))


def losses(most, caught=False):
    torch.manual_seed(0)
    model = Net(most)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in data(8):
        try:
            loss = F.cross_entropy(model(x), y)
        except torch.OutOfMemoryError as error:
            if not caught:
                raise
            said.append(str(error))
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return said


@pytest.mark.parametrize("nproc", [2, 4])
def test_a_batch_that_fits_only_when_split_trains(ranks, nproc):
    wanted = losses(8)
    for found in ranks.call(losses, nproc, 8 // nproc).ok().results:
        assert found == pytest.approx(wanted, rel=1e-9)


def test_no_memory_is_an_error_of_the_scripts_that_it_may_catch(ranks):
    for found in ranks.call(losses, 2, 1, True).ok().results:
        assert all("rows" in said for said in found if isinstance(said, str))
        assert any(isinstance(said, str) for said in found)


def fails_on_one_rank(call, where, error):
    os.environ["ERROR_OF_MEMORY"], is_failing = error, ddp_patch.rank() == 1
    model = Net(0 if is_failing and where == "a forward" else 8, at=call)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step, (x, y) in enumerate(data(8)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if where == "a backward" and is_failing and step >= call:
            os.environ["ROWS_THAT_FIT_BACK"] = "0"
        loss.backward()
        optimizer.step()
        if where == "an evaluation" and step >= call:
            model.most = 0 if is_failing else 8
            with torch.no_grad():
                model.eval()(x)
            model.train()


@pytest.mark.slow
@pytest.mark.parametrize("error", ["OutOfMemoryError", "AcceleratorError"])
@pytest.mark.parametrize(
    ("where", "call"),
    [
        *(("a forward", call) for call in (1, 2, 3)),
        *(("a backward", call) for call in (0, 1, 2)),
        *(("an evaluation", call) for call in (0, 1)),
    ],
)
def test_no_memory_on_one_rank_ends_all_of_them(ranks, where, call, error):
    began = time.monotonic()
    outcome = ranks.call(fails_on_one_rank, 3, call, where, error)
    assert time.monotonic() - began < 100  # as 7 to 10 seconds on a quiet machine
    assert all(code for code in outcome.codes)
    assert not outcome.late
    assert not outcome.ended
    assert f"raised {error}" in outcome.said()
    assert ("Make batches smaller." in outcome.said()) == (error == "OutOfMemoryError")


def test_a_trial_shares_parameters():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LSTM(64, 8))
    twin = trial_copy(model)
    pairs = [*zip(model.parameters(), twin.parameters(), strict=True)]
    assert all(mine is other for mine, other in pairs if mine.min() != mine.max())
    assert all(mine is not other for mine, other in pairs if mine.min() == mine.max())
    assert all(b is not other for b, other in zip(model.buffers(), twin.buffers(), strict=True))


class Talker(nn.Module):
    """Has logits that are far larger than all else, and its loss in forward where it is given targets."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1_000_000)

    def forward(self, x, y=None):
        logits = self.head(self.body(x).tanh())
        return logits if y is None else F.cross_entropy(logits, y)


def peaks(inside):
    """Bytes at most, in each of four steps, in units of the logits of all rows; by torch's profiler."""
    import json
    import tempfile

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    model = Talker()
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for x, y in data(16, 64):
        x = x.float()
        with torch.profiler.profile(profile_memory=True) as profiled:
            loss = model(x, y) if inside else F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with ddp_patch.per_rank(), tempfile.NamedTemporaryFile() as file:
            profiled.export_chrome_trace(file.name)
            events = json.loads(open(file.name).read())["traceEvents"]
        present = most = 0
        for event in sorted((its for its in events if its.get("name") == "[memory]"), key=lambda its: its["ts"]):
            present += event["args"]["Bytes"]
            most = max(most, present)
        found.append(most / (16 * 1_000_000 * 4))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False], ids=["a loss inside", "a loss outside"])
def test_logits_of_a_ranks_rows_go_as_early_as_on_one_process(ranks, inside):
    alone = ranks.call(peaks, 1, inside).ok().results[0]
    for first, *_, last in ranks.call(peaks, 2, inside).ok().results:
        # Half the rows; DDP's buckets, which are made in the first step, are as large as the logits of nine. A trial beside
        # the call has logits of its own.
        assert last <= alone[-1] / 2
        assert first <= alone[0] / 2 + 9 / 16 + 0.4


class Allocated(TorchDispatchMode):
    """Counts the bytes of memory that is new."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.found[storage.data_ptr()] = storage  # kept, so that no other one gets its address
        return result

    def bytes(self, beside):
        held = {tensor.untyped_storage().data_ptr() for tensor in beside}
        return sum(storage.nbytes() for place, storage in self.found.items() if place not in held)


def asked_by_a_gather(dims):
    """How often a gather asks for memory as large as the whole batch, at most: even rows, uneven ones, and columns."""
    from ddp_patch.batch.forms import full_tensor

    asked = []
    for rows, dim in dims:
        x = ddp_patch.shard_batch(torch.zeros(rows, 1000).transpose(0, dim).contiguous(), dim=dim) * 1
        with Allocated() as allocated:
            whole = full_tensor(x)
        asked.append(allocated.bytes([x._rows]) / (whole.numel() * whole.element_size()))
    return asked


def test_a_gather_asks_for_little_more_than_the_whole(ranks):
    """Once, where ranks have as many rows; else what travels as well, which is padded."""
    for asked in ranks.call(asked_by_a_gather, 2, [(1000, 0), (999, 0), (1000, 1)]).ok().results:
        assert asked[0] <= 1.01
        assert asked[1] <= 2.51  # and this rank's rows, padded
        assert asked[2] <= 2.51
