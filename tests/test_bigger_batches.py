"""batch="per_device", lr_scale and warmup: what the same run says that is written by hand on one process."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from local import by_hand
from local.habits import Uneven, mlp, rows, weights
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import ddp_patch
from ddp_patch.errors import OptionError
from ddp_patch.options import Options, parse
from ddp_patch.patches import device
from ddp_patch.rates import is_adaptive

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.AdamW(p, lr),
    "capturable": lambda p, lr: torch.optim.SGD(p, torch.tensor(lr), foreach=True),
}


def same(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            same(*pair)
    else:
        assert left == pytest.approx(right, rel=1e-9, abs=1e-12)


class Stream(IterableDataset):
    def __iter__(self):
        yield from (rows(46)[i] for i in range(46))

    def __len__(self):
        return 46


class StreamWithoutLength(IterableDataset):
    def __iter__(self):
        yield from (rows(46)[i] for i in range(46))


class Groups(Uneven):
    """Batches that are put together two by two, by hand."""

    def __init__(self, count, size):
        super().__init__(count)
        self.size = size

    def __iter__(self):
        lists = list(super().__iter__())
        for start in range(0, len(lists), self.size):
            yield [index for part in lists[start : start + self.size] for index in part]

    def __len__(self):
        return -(-4 // self.size)


def loader_of(kind, size):
    torch.manual_seed(3)
    if kind == "shuffled":
        return DataLoader(rows(46), 6 * size, shuffle=True)
    if kind == "dropped":
        return DataLoader(rows(46), 6 * size, shuffle=True, drop_last=True)
    if kind == "stream":
        return DataLoader(Stream(), 6 * size)
    if kind == "stream without a length":
        return DataLoader(StreamWithoutLength(), 6 * size)
    if kind == "collated":
        return DataLoader(rows(46), 6 * size, collate_fn=lambda batch: torch.utils.data.default_collate(batch))
    if kind == "workers":
        return DataLoader(rows(46), 6 * size, num_workers=2, persistent_workers=True)
    return DataLoader(rows(47), batch_sampler=Groups(47, size))


def grown(kind, size):
    """A script with batches of 6, or by hand of ``size`` times as many."""
    loader, model = loader_of(kind, size), mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for _ in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append([len(x), loss.item()])
    count = -1 if kind == "stream without a length" else len(loader)
    return {"len": count, "seen": seen, "weights": weights(model)}


KINDS = ["shuffled", "dropped", "stream", "stream without a length", "collated", "workers", "batch sampler"]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_grow_to_those_of_one_process_with_a_bigger_size(ranks, kind, nproc):
    (wanted,) = ranks.call(grown, 1, kind, nproc).ok().results
    for found in ranks.call(grown, nproc, kind, 1, enable={"batch": "per_device"}).ok().results:
        same(found, wanted)


def scheduled(name, factor, warmup, when, by_hand_too):
    """Rates by hand, or as the script has them for one device."""
    model = mlp()
    scale = factor if by_hand_too else 1.0
    optimizer = OPTIMIZERS[name](model.parameters(), 0.01 * scale if not warmup else 0.01)
    steps = 0

    def warmed():
        return 1 + (factor - 1) * min(1.0, steps / warmup)

    loader = DataLoader(rows(48), 12 if by_hand_too else 12 // ddp_patch.world_size())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if when == "before" else None
    shown = []
    for _ in range(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            kept = optimizer.param_groups[0]["lr"]
            if by_hand_too and warmup:
                optimizer.param_groups[0]["lr"] = kept * warmed()
            optimizer.step()
            if by_hand_too and warmup:
                optimizer.param_groups[0]["lr"] = kept
            steps += 1
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        scheduler.step()
        shown.append(float(optimizer.param_groups[0]["lr"]) / (scale if not warmup else 1.0))
    return {"weights": weights(model), "rates": shown}


@pytest.mark.slow
@pytest.mark.some("before-global", "sgd-linear-2.0-1.5 epochs", "adam-2-2.0-4 steps-4-after-local")
@pytest.mark.parametrize("view", ["global", "local"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("name", "rule", "factor", "warmup", "steps"),
    [
        ("sgd", "linear", 2.0, None, 0),
        ("sgd", "sqrt", math.sqrt(2), None, 0),
        ("sgd", 3.0, 3.0, 5, 5),
        ("sgd", "linear", 2.0, "1.5 epochs", 6),
        ("adam", "linear", math.sqrt(2), None, 0),
        ("adam", 2, 2.0, "4 steps", 4),
        ("capturable", "linear", 2.0, 3, 3),
    ],
)
def test_rates_are_those_that_are_written_by_hand(ranks, name, rule, factor, warmup, steps, when, view):
    (wanted,) = ranks.call(scheduled, 1, name, factor, steps, when, True).ok().results
    options = {"batch": "per_device", "lr_scale": rule, "warmup": warmup, "view": view}
    for found in ranks.call(scheduled, 2, name, factor, 0, when, False, enable=options).ok().results:
        same(found, wanted)


def resumed(part):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    first = 0
    if part == "second":
        kept = torch.load("kept.pt")
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = 2
    for _ in range(first, 2 if part == "first" else 4):
        for x, y in DataLoader(rows(48), 6):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "kept.pt")
    return [weights(model), optimizer.param_groups[0]["lr"]]


@pytest.mark.slow
@pytest.mark.some("3 epochs")
@pytest.mark.parametrize("warmup", [11, "3 epochs"])
def test_a_warmup_goes_on_where_a_checkpoint_left_it(ranks, tmp_path, warmup):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": warmup}
    wanted = ranks.call(resumed, 2, "whole", enable=options).ok().results
    for part in ("first", "second"):
        found = ranks.call(resumed, 2, part, enable=options, cwd=str(tmp_path)).ok().results
    same(found, wanted)
    assert found[0][1] == 0.05  # the script's rate, whatever the ranks


class Around(torch.optim.Optimizer):
    """An optimizer that wraps another, whose groups it shares: steps inside of a step, as sharpness-aware ones have."""

    def __init__(self, base):
        super().__init__(base.param_groups, {"lr": 1.0})
        self.base, self.param_groups, self.extra = base, base.param_groups, None

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        moved = [(p, 0.05 * p.grad) for group in self.param_groups for p in group["params"]]
        for parameter, by in moved:
            parameter += by
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for parameter, by in moved:
            parameter -= by
        self.base.step()


class Several(torch.optim.Optimizer):
    """Steps that are made of others', with no groups of its own."""

    def __init__(self, *those):
        super().__init__([torch.zeros(0)], {"lr": 1.0})
        self.param_groups[0]["params"].clear()
        self.those = those

    def step(self, closure=None):
        for its in self.those:
            its.step()

    def zero_grad(self, set_to_none=True):
        for its in self.those:
            its.zero_grad()


class Handed(torch.optim.SGD):
    """An optimizer that hands its rates on to one of its own, as ``ZeroRedundancyOptimizer`` does."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], 100.0)

    def step(self, closure=None):
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()


class Twice(torch.optim.SGD):
    """A step that is made of its base class's."""

    def step(self, closure=None):
        return super().step(closure)


def wrapped(kind, factor):
    """A script with batches of 6 on each rank, or by hand of 12 and with ``factor``."""
    by_hand_too = factor != 1
    model = mlp()
    first, *others = model.parameters()
    if kind == "around":
        optimizer = Around(torch.optim.SGD(model.parameters(), 0.01 * factor))
    elif kind == "several":
        those = (torch.optim.SGD([first], 0.01 * factor), torch.optim.SGD(others, 0.02 * factor))
        optimizer = Several(*those)
    elif kind == "handed":
        optimizer = Handed(model.parameters(), 0.01 * factor)
    else:
        torch.optim.SGD([first], 1.0)  # whose class's step has hooks from here on
        optimizer = Twice(model.parameters(), 0.01 * factor)
    for x, y in DataLoader(rows(48), 12 if by_hand_too else 12 // ddp_patch.world_size()):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        if kind == "around":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    report = ddp_patch.report()
    return {"weights": weights(model), "steps": 4 if by_hand_too or report is None else report.ledger.steps}


@pytest.mark.slow
@pytest.mark.some("around-global", "several-local", "handed-global", "twice-local")
@pytest.mark.parametrize("view", ["global", "local"])
@pytest.mark.parametrize("kind", ["around", "several", "handed", "twice"])
def test_a_step_inside_another_is_not_scaled_again(ranks, kind, view):
    (wanted,) = ranks.call(wrapped, 1, kind, 2).ok().results
    options = {"batch": "per_device", "lr_scale": "linear", "view": view, "check_every": 2}
    for found in ranks.call(wrapped, 2, kind, 1, enable=options).ok().results:
        same(found, wanted)


def sharded(is_by_hand):
    """torch's optimizer whose states are spread over the ranks; one of three has nothing to train, and is Adam."""
    model = nn.Linear(5, 4).double()
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.uniform_(parameter)
    if is_by_hand:
        optimizer = torch.optim.Adam(model.parameters(), 0.01 * math.sqrt(3))
    else:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for x, y in DataLoader(rows(48), 12 if is_by_hand else 4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sqrt", "linear"])
def test_an_optimizer_that_is_spread_over_ranks_is_one(ranks, rule):
    (wanted,) = ranks.call(sharded, 1, True).ok().results
    options = {"batch": "per_device", "lr_scale": rule, "view": "local", "check_every": 1}
    for found in ranks.call(sharded, 3, False, enable=options).ok().results:
        same(found, wanted)


def trained_twice(are_made_anew):
    """How far the warmup came after each epoch of a second training on the same loader."""
    loader, model, came = DataLoader(rows(24), 6), mlp(), []
    for epochs in (2, 4):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(epochs):
            for x, y in DataLoader(rows(12), 6) if are_made_anew else loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            came.append(optimizer.param_groups[0]["ddp_patch_warmup"])
    return came


@pytest.mark.quick("global-True", "local-False")
@pytest.mark.parametrize("are_made_anew", [False, True])
@pytest.mark.parametrize("view", ["global", "local"])
def test_a_second_training_warms_up_as_well(ranks, view, are_made_anew):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": "4 epochs", "view": view}
    for found in ranks.call(trained_twice, 2, are_made_anew, enable=options).ok().results:
        same(found, [0.25, 0.5, 0.25, 0.5, 0.75, 1.0])


def by_hand_locally(is_used):
    hand = by_hand.Hand(is_used)
    model = hand.model(mlp())
    size = 6 * hand.size  # of which by_hand takes a rank's share
    optimizer = torch.optim.SGD(model.parameters(), 0.05 * (hand.size if is_used else 1))
    losses = []
    loader = hand.loader(rows(), size, shuffle=True)
    for epoch in range(2):
        for x, y in hand.epoch(loader, epoch):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found = {"losses": losses, "weights": weights(model), "len": len(loader)}
    hand.end()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_the_local_view_grows_as_hand_written_ddp_does(ranks, nproc):
    wanted = ranks.call(by_hand_locally, nproc, True, bare=True).ok().results
    options = {"view": "local", "batch": "per_device", "lr_scale": "linear"}
    same(ranks.call(by_hand_locally, nproc, False, enable=options).ok().results, wanted)


def notes():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for x, y in DataLoader(rows(12), 6):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return list(ddp_patch.report().ledger.notes)


@pytest.mark.slow
def test_the_report_says_what_rates_count(ranks):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": 7}
    for found in ranks.call(notes, 2, enable=options).ok().results:
        assert "learning rates of Adam count 1.414 times (the root of 2 ranks), reached after 7 steps" in found


# --- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": "big"}, "batch='big' cannot be used: batch takes 'global' or 'per_device'."),
        ({"lr_scale": "cubic", "batch": "per_device"}, "lr_scale takes 'linear', 'sqrt' or a number above 0"),
        ({"lr_scale": 0, "batch": "per_device"}, "lr_scale takes"),
        ({"lr_scale": True, "batch": "per_device"}, "lr_scale takes"),
        ({"lr_scale": "linear"}, "Write batch='per_device' beside it"),
        ({"warmup": 5, "batch": "per_device"}, "Write lr_scale='linear' beside it"),
        ({"warmup": 0, "lr_scale": 2, "batch": "per_device"}, "warmup takes a number of steps above 0"),
        ({"warmup": "5 days", "lr_scale": 2, "batch": "per_device"}, "or a text such as '5 epochs'"),
        ({"warmup": True, "lr_scale": 2, "batch": "per_device"}, "warmup takes"),
    ],
)
def test_what_cannot_be_used_is_an_error_with_the_line_to_write(given, words):
    with pytest.raises(OptionError) as caught:
        Options.resolve(given, {})
    assert words in str(caught.value)


def test_values_are_written_as_text_too():
    assert [parse("lr_scale", text) for text in ("linear", "2.5")] == ["linear", 2.5]
    assert [parse("warmup", text) for text in ("500", "5 epochs")] == [500, "5 epochs"]


class Whole(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return torch.ones(4, 5)


def a_loader_that_cannot_grow():
    try:
        for _ in DataLoader(Whole(), batch_size=None):
            pass
    except ddp_patch.BatchError as error:
        return str(error)


def test_batches_that_the_dataset_makes_cannot_grow(ranks):
    for said in ranks.call(a_loader_that_cannot_grow, 2, enable={"batch": "per_device"}).ok().results:
        assert "batch='per_device' cannot let batches grow that the dataset makes" in said


def down_by_hand():
    model = nn.Linear(5, 1)
    try:
        for (x,) in DataLoader(TensorDataset(torch.ones(24, 5)), 4):
            model(x).mean().backward()
            for p in model.parameters():
                p.data -= 0.1 * p.grad
    except OptionError as error:
        return str(error)


def test_a_rate_that_no_optimizer_has_cannot_be_scaled(ranks):
    options = {"batch": "per_device", "lr_scale": "linear"}
    for said in ranks.call(down_by_hand, 2, enable=options).ok().results:
        assert said.startswith("lr_scale='linear' scales the learning rates of optimizers, and the script has none")


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(5)


def epochs_without_a_length():
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        for x in DataLoader(Endless(), 4):
            model(x).mean().backward()
            optimizer.step()
    except OptionError as error:
        return str(error)


@pytest.mark.slow
def test_a_warmup_in_epochs_needs_epochs_that_end(ranks):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": "2 epochs"}
    for said in ranks.call(epochs_without_a_length, 2, enable=options).ok().results:
        assert "needs a loader with a length" in said


class OfItsOwn(torch.optim.SGD):
    """An optimizer that chooses its rates."""

    def __init__(self, params):
        super().__init__(params, 0.1)
        self.param_groups[0]["lr"] = None

    def step(self, closure=None):
        pass


def without_a_rate():
    model = nn.Linear(5, 2).double()
    optimizer = OfItsOwn(model.parameters())
    try:
        for x, y in DataLoader(rows(12), 6):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    except OptionError as error:
        return str(error)


@pytest.mark.slow
def test_a_rate_that_an_optimizer_chooses_cannot_be_scaled(ranks):
    for said in ranks.call(without_a_rate, 2, enable={"batch": "per_device", "lr_scale": "linear"}).ok().results:
        assert "lr_scale scales learning rates, and OfItsOwn has none" in said


def without_a_loader(rule):
    """What two steps on batches of the script's own change, of which the first changes nothing."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    optimizer.step()  # as for states that a checkpoint is then read into
    try:
        (weight * torch.ones(4)).mean().backward()
        optimizer.step()
    except OptionError as error:
        return str(error)
    return weight.item()


@pytest.mark.slow
@pytest.mark.parametrize("view", ["global", "local"])
def test_rates_of_batches_that_do_not_grow_are_scaled_by_a_number_alone(ranks, view):
    options = {"batch": "per_device", "view": view}
    for said in ranks.call(without_a_loader, 2, None, enable={**options, "lr_scale": "linear"}).ok().results:
        assert "before this step none has grown" in said
    for found in ranks.call(without_a_loader, 2, None, enable={**options, "lr_scale": 3}).ok().results:
        assert found == pytest.approx(1 - 0.3)


class Counts(DataLoader):
    """A loader that counts its batches by itself."""

    def __len__(self):
        return 4


def a_loader_with_a_length_of_its_own():
    try:
        return [len(x) for x in Counts(torch.arange(24), 6)]
    except ddp_patch.BatchError as error:
        return str(error)


@pytest.mark.slow
def test_batches_that_a_loader_counts_by_itself_cannot_grow(ranks):
    for said in ranks.call(a_loader_with_a_length_of_its_own, 2, enable={"batch": "per_device"}).ok().results:
        assert "cannot let the batches of Counts grow, which counts them by itself (it has" in said


def warmed_up_over_a_stream():
    model, loader, came = mlp(), DataLoader(Stream(), 6), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        came.append(optimizer.param_groups[0]["ddp_patch_warmup"])
    return came


@pytest.mark.slow
@pytest.mark.parametrize("view", ["global", "local"])
def test_a_warmup_in_epochs_of_a_stream_that_has_a_length(ranks, view):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": "2 epochs", "view": view}
    for found in ranks.call(warmed_up_over_a_stream, 2, enable=options).ok().results:
        assert found == pytest.approx([0.5, 1.0, 1.0])


def rates_within_a_step():
    """What a closure finds, and sets; and what is left when it raises."""
    model, seen = mlp(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(DataLoader(rows(36), 6)):

        def closure(number=number, x=x, y=y):
            seen.append(optimizer.param_groups[0]["lr"])
            if number == 1:
                optimizer.param_groups[0]["lr"] = 0.05
            if number == 2:
                raise ValueError("a bad batch")
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        before = weights(model)
        try:
            optimizer.step(closure)
        except ValueError:
            seen.append(optimizer.param_groups[0]["lr"])
            continue
        seen.append((before[0][0] - weights(model)[0][0]) / next(model.parameters()).grad[0, 0].item())
    return seen


@pytest.mark.parametrize("view", ["global", "local"])
def test_a_closure_finds_and_sets_the_rates_of_the_script(ranks, view):
    options = {"batch": "per_device", "lr_scale": "linear", "view": view}
    for found in ranks.call(rates_within_a_step, 2, enable=options).ok().results:
        assert found == pytest.approx([0.1, 0.2, 0.1, 0.1, 0.05, 0.05])


def few_rows_each():
    return [len(x) for x in DataLoader(torch.arange(8.0), 1, num_workers=2)], ddp_patch.report().ledger.loaders


@pytest.mark.slow
def test_few_rows_of_each_rank_are_dealt(ranks):
    for lengths, loaders in ranks.call(few_rows_each, 3, enable={"batch": "per_device"}).ok().results:
        assert lengths == [3, 3, 2]
        assert all("dealt" in how for how in loaders.values()), loaders


def test_adams_kind_is_known_by_name():
    parameters = [nn.Parameter(torch.ones(1))]

    class FusedAdamish(torch.optim.Optimizer):
        def __init__(self):
            super().__init__(parameters, {"lr": 1.0})

    assert is_adaptive(torch.optim.NAdam(parameters))
    assert is_adaptive(torch.optim.RMSprop(parameters))
    assert is_adaptive(FusedAdamish())
    assert not is_adaptive(torch.optim.SGD(parameters, 0.1))
    assert len(TensorDataset(torch.ones(2))) == 2


@pytest.mark.parametrize(
    ("batch", "caller", "count"),
    [("per_device", "script", 1), ("per_device", "library", 8), ("global", "script", 8)],
)
def test_a_script_that_multiplies_by_its_devices_is_told_one(batch, caller, count):
    row = next(row for row in device.PATCHES if row.name == "torch.cuda.device_count")
    owners = SimpleNamespace(caller=lambda: caller)
    session = SimpleNamespace(options=Options(batch=batch), owners=owners)
    assert row.wrapper(session, lambda: 8, None, (), {}) == count
    assert row.wrapper(session, lambda: 0, None, (), {}) == 0


def two_optimizers():
    first, second = nn.Linear(5, 5).double(), nn.Linear(5, 2).double()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (first, second)]
    for _ in range(2):
        for x, y in DataLoader(rows(24), 6):
            F.cross_entropy(second(first(x)), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    return [optimizer.param_groups[0]["ddp_patch_warmup"] for optimizer in optimizers]


@pytest.mark.slow
def test_each_optimizer_has_a_warmup_of_its_own(ranks):
    options = {"batch": "per_device", "lr_scale": "linear", "warmup": "4 epochs"}
    assert ranks.call(two_optimizers, 2, enable=options).ok().results == [[0.5, 0.5]] * 2
