"""nn.DataParallel's own contract, where it differs from a single device."""

import copy
import itertools
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from parity.data_parallel_habits import HABITS, run
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))


@pytest.mark.quick(
    "dicts_with_attributes-2",
    "packed_sequences-2",
    "data_parallel_inside_data_parallel-2",
    "functional-2",
    "scalars_among_the_outputs-2",
)
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit_gives_what_one_process_gives(ranks, habit, nproc):
    wanted = run(habit.__name__)
    for result in ranks.call(run, nproc, habit.__name__).ok().results:
        assert result == pytest.approx(wanted, rel=1e-9, abs=1e-11)


# --- several devices --------------------------------------------------------------------------------------------------


def on_devices(module, **options):
    """A wrapper as it is on a host with accelerators, where it is bound to this rank's."""
    wrapper = nn.DataParallel(module, **options)
    wrapper.device_ids, wrapper.output_device = [0], 0
    return wrapper


class LossInside(nn.Module):
    """Returns a loss over its rows, how many it got right, and one entry per row."""

    def __init__(self, reduction="mean", habit="plain"):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)
        self.reduction, self.habit = reduction, habit

    def forward(self, x, y, nothing=None):
        h = self.layer(x).tanh()
        out = self.head(self.norm(h) if self.habit == "norm" else h)
        loss = F.cross_entropy(out, y, reduction=self.reduction)
        if self.habit == "reads":
            loss = loss * (2 if loss.item() > 1e9 else 1)
        if self.habit == "keeps":
            self.last = out
        return {"loss": loss, "right": (out.argmax(1) == y).sum(), "rows": out}


def batches(sizes=(6, 6, 2, 1), features=4):
    """Whole and short batches: with three ranks, the last two are not dealt."""
    g = torch.Generator().manual_seed(3)
    data = [(torch.randn(features, generator=g), i % 3) for i in range(sum(sizes))]
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return DataLoader(data, batch_sampler=[list(range(a, b)) for a, b in itertools.pairwise(ends)])


def losses_on_devices(reduction, habit):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = on_devices(LossInside(reduction, habit))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches():
        out = model(x, y)
        combined = out["loss"].mean() if reduction == "mean" else out["loss"].sum()
        optimizer.zero_grad()
        combined.backward()
        grads = [p.grad.flatten().tolist() if p.grad is not None else None for p in model.parameters()]
        optimizer.step()
        right = out["right"]
        said.append([out["loss"].tolist(), combined.item(), right.sum().item(), len(right), list(out["rows"].shape)])
        said.append(grads)
    return said


def losses_by_torchs_arithmetic(reduction, habit, devices):
    """What DataParallel computes on N devices: the module on each chunk, and its 0-dim outputs as a vector."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = LossInside(reduction, habit)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for x, y in batches():
        chunks = zip(x.tensor_split(min(devices, len(x))), y.tensor_split(min(devices, len(x))), strict=True)
        outs = [model(*chunk) for chunk in chunks]
        losses = torch.stack([out["loss"] for out in outs])
        combined = losses.mean() if reduction == "mean" else losses.sum()
        optimizer.zero_grad()
        combined.backward()
        grads = [p.grad.flatten().tolist() if p.grad is not None else None for p in model.parameters()]
        optimizer.step()
        said.append(
            [losses.tolist(), combined.item(), sum(out["right"].item() for out in outs), len(outs), [len(x), 3]]
        )
        said.append(grads)
    return said


def numbers(value):
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in numbers(item)]
    return [] if value is None else [float(value)]


@pytest.mark.quick("2-mean")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_scalars_come_back_as_one_value_per_device(ranks, nproc, reduction):
    wanted = losses_by_torchs_arithmetic(reduction, "plain", nproc)
    for result in ranks.call(losses_on_devices, nproc, reduction, "plain").ok().results:
        # A short batch was not dealt: its entries are alike, and reduce to what torch's reduce to.
        for batch, (ours, theirs) in enumerate(zip(result[::2], wanted[::2], strict=True)):
            if batch == 2 and nproc == 3:
                assert len(ours[0]) == len(theirs[0]) == 2
                ours, theirs = ours[1:], theirs[1:]
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-9)
        assert numbers(result[1::2]) == pytest.approx(numbers(wanted[1::2]), rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("habit", ["reads", "keeps"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scalars_of_a_module_that_needs_the_whole_batch_are_a_vector_too(ranks, reduction, habit):
    # Chunks of equal size (6 rows of 3 ranks, 2 and 1 alone) reduce to the same.
    wanted = losses_by_torchs_arithmetic(reduction, habit, 3)
    for result in ranks.call(losses_on_devices, 3, reduction, habit).ok().results:
        for ours, theirs in zip(result[::2], wanted[::2], strict=True):
            assert len(ours[0]) == len(theirs[0])
            assert numbers(ours[1:]) == pytest.approx(numbers(theirs[1:]), rel=1e-9)
        assert numbers(result[1::2]) == pytest.approx(numbers(wanted[1::2]), rel=1e-9, abs=1e-12)


def one_device():
    """A wrapper for one named device, of a rank's own or of the first, gives the scalar itself."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = on_devices(LossInside(), device_ids=[0])
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    return [[wrapper(x, y)["loss"].item() for x, y in batches((6, 6))] for wrapper in (model, twin)]


def test_one_named_device_gives_scalars(ranks):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = LossInside()
    wanted = [model(x, y)["loss"].item() for x, y in batches((6, 6))]
    for result in ranks.call(one_device, 3).ok().results:
        assert result == [pytest.approx(wanted), pytest.approx(wanted)]


def nested_wrappers():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    inner = on_devices(LossInside())
    inner.src_device_obj, inner.dim = torch.device("cpu"), 0
    model = on_devices(inner)
    return [[list(value["loss"].shape), value["loss"].mean().item()] for value in (model(*b) for b in batches((6, 3)))]


def test_nested_wrappers_give_one_value_per_rank(ranks):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = LossInside()
    wanted = [model(x, y)["loss"].item() for x, y in batches((6, 3))]
    for result in ranks.call(nested_wrappers, 3).ok().results:
        assert [shape for shape, _ in result] == [[3], [3]]
        assert [value for _, value in result] == pytest.approx(wanted)


class Unpacks(nn.DataParallel):
    """As mmcv: arguments are containers that only ``scatter`` knows how to open."""

    asked = ()

    def scatter(self, inputs, kwargs, device_ids):
        self.asked = list(device_ids)
        inputs, kwargs = super().scatter([container["data"] for container in inputs], kwargs, device_ids)
        return inputs, kwargs


class Lists(nn.DataParallel):
    """Keeps every device's output."""

    def gather(self, outputs, output_device):
        return [output["loss"] for output in outputs], output_device


class TooMany(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        return [inputs, inputs], [kwargs, kwargs]


def overrides():
    import ddp_patch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net = LossInside()
    wrappers = [kind(copy.deepcopy(net)) for kind in (Unpacks, Lists, TooMany)]
    for wrapper in wrappers:
        wrapper.device_ids, wrapper.output_device, wrapper.dim = [0], 0, 0
    unpacks, lists, many = wrappers
    said = []
    for x, y in batches((6, 3)):
        out = unpacks({"data": x}, {"data": y})
        [loss], where = lists(x, y)
        said.append([out["loss"].mean().item(), len(out["loss"]), loss.item(), where, list(out["rows"].shape)])
    try:
        many(x, y)
    except ddp_patch.DdpPatchError as error:
        said.append(str(error))
    return said, unpacks.asked, sum(ddp_patch.report().ledger.rows.values())


def test_scatter_and_gather_of_a_subclass_are_called_for_the_ranks_device(ranks):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = LossInside()
    wanted = [model(x, y)["loss"].item() for x, y in batches((6, 3))]
    for said, asked, dealt in ranks.call(overrides, 3).ok().results:
        assert asked == [0]
        assert dealt >= 2
        for (loss, count, whole, where, shape), value, rows in zip(said[:2], wanted, (6, 3), strict=True):
            assert (loss, whole) == (pytest.approx(value), pytest.approx(value))
            assert (count, where, shape) == (3, 0, [rows, 3])
        assert "TooMany.scatter" in said[2]


# --- what is split, and what is said ----------------------------------------------------------------------------------


class OwnForward(nn.DataParallel):
    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


def what_is_split(kind):
    import ddp_patch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net, other = nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 4))
    if kind == "frozen":
        wrapped = nn.DataParallel(net)
        net.requires_grad_(False)
    elif kind == "own forward":
        wrapped = OwnForward(net)
    elif kind == "by hand":
        wrapped = lambda x: nn.parallel.gather(  # noqa: E731
            nn.parallel.parallel_apply(nn.parallel.replicate(net, [0, 1]), nn.parallel.scatter(x, [0, 1])), 0
        )
    else:
        wrapped = lambda x: nn.parallel.data_parallel(net, x, range(2))  # noqa: E731
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    for x, _ in batches((6, 6, 6)):
        loss = wrapped(other(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [list(ddp_patch.report().ledger.replicas), list(ddp_patch.report().ledger.notes)]


@pytest.mark.quick("own forward", "functional")
@pytest.mark.parametrize("kind", ["frozen", "own forward", "by hand", "functional"])
def test_trained_nets_run_on_rows(ranks, kind):
    for replicas, notes in ranks.call(what_is_split, 3, kind).ok().results:
        assert len(replicas) == 2
        assert any("Sequential" in name for name in replicas)
        assert len(notes) == {"by hand": 1, "functional": 1}.get(kind, 0)


def says_fewer_devices():
    import ddp_patch

    net = nn.Linear(4, 3)
    nn.DataParallel(net, [0, 1])
    nn.DataParallel(net, device_ids=[0, 1, 2])
    nn.DataParallel(net)
    return list(ddp_patch.report().ledger.notes)


def test_fewer_devices_than_ranks_are_noted(ranks):
    for notes in ranks.call(says_fewer_devices, 3).ok().results:
        assert len(notes) == 1
        assert "device_ids=[0, 1]" in notes[0]
        assert "all 3 ranks" in notes[0]


def refused():
    import ddp_patch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    net, [(x, _)] = nn.Linear(4, 3), batches((6,))

    replicas, chunks = nn.parallel.replicate(net, [0, 1]), nn.parallel.scatter(x, [0, 1])
    apply = nn.parallel.parallel_apply
    same = {"flag": None}
    assert replicas[:2] == [net]
    assert chunks[0].shape == (6, 4)
    halves = nn.parallel.gather(apply(replicas, x.chunk(2)), 0)
    applied = apply(replicas, chunks, [{}, {}], [0, 1])[0]
    # A product over other numbers of rows may be rounded otherwise, as the processor's kernels have it.
    said = [torch.allclose(out, net(x), rtol=1e-9, atol=1e-12) for out in (halves, applied)]

    class Unready(nn.Module):
        def __deepcopy__(self, memo):
            raise TypeError("cannot be copied")

        def forward(self, x):
            return x.sum()

    for doing in (
        lambda: replicas[1],
        lambda: chunks[1],
        lambda: apply([net, net], chunks),
        lambda: apply(replicas, chunks, [same, {"flag": 1}]),
        lambda: on_devices(Unready())(x),
    ):
        try:
            doing()
        except ddp_patch.DdpPatchError as error:
            said.append(str(error))
    return said


def test_what_cannot_be_told_names_the_line_to_write(ranks):
    for result in ranks.call(refused, 2).ok().results:
        assert result[:2] == [True, True]
        entry, chunk, modules, keywords, scalar = result[2:]
        assert "module(inputs)" in entry
        assert "module(inputs)" in chunk
        assert "2 modules and 1 inputs" in modules
        assert "1 inputs and 2 keyword arguments" in keywords
        assert "nn.DataParallel(model, device_ids=[0])" in scalar


def put_back():
    import ddp_patch

    owners = [sys.modules[f"torch.nn.parallel{name}"] for name in ("", ".data_parallel", ".distributed")]
    names = ["replicate", "scatter", "parallel_apply", "gather", "data_parallel"]
    patched = [hasattr(vars(owner)[name], "__wrapped__") for owner in owners for name in names if name in vars(owner)]
    ddp_patch.disable()
    after = [hasattr(vars(owner)[name], "__wrapped__") for owner in owners for name in names if name in vars(owner)]
    return all(patched), any(after), len(after)


def test_functions_are_bound_under_every_name_and_put_back(ranks):
    for patched, after, count in ranks.call(put_back, 2).ok().results:
        assert (patched, after) == (True, False)
        assert count > 8


def most_rows_at_once():
    """Of plain tensors that a model with a loss is run on: of its trials, and of this rank."""
    seen = []

    class Counting(LossInside):
        def forward(self, x, y):
            if type(x) is torch.Tensor:
                seen.append(len(x))
            return super().forward(x, y)

    model = on_devices(Counting())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches((64, 64)):
        optimizer.zero_grad()
        model(x, y)["loss"].mean().backward()
        optimizer.step()
    return max(seen)


def test_what_scalars_are_is_told_from_a_few_rows(ranks):
    """All rows of a batch need not fit on one device."""
    assert max(ranks.call(most_rows_at_once, 2).ok().results) <= 32
