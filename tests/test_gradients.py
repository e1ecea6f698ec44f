"""When gradients travel: counts of collectives and bytes, and what DDP is told."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from parity.habits import data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddp_patch.batch.dealt_tensors import DealtTensors
from ddp_patch.batch.pending import PendingReduction
from ddp_patch.gradients.accumulation import AccumulationSchedule
from ddp_patch.gradients.flags import Flags
from ddp_patch.gradients.loss_scale import LossScale
from ddp_patch.ledger import Ledger

GRADIENTS = ("gradient bucket", "gradient average")


def net(width=64):
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 4))


def batches(count, size=4):
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(count * size, 16, generator=g), torch.randint(0, 4, (count * size,), generator=g)
    return DataLoader(TensorDataset(x, y), size)


def counted(ledger):
    return {name: [ledger.collectives[name], ledger.collective_bytes[name]] for name in ledger.collectives}


def current_ledger():
    from ddp_patch.batch.world import World

    return World.get().ledger


def gradient_bytes(held):
    return sum(size for name, (_, size) in held.items() if name in GRADIENTS)


def accumulating(every, steps=6, ragged=0, read=False):
    """Bytes of gradients for each optimizer step, and the collectives of the last one."""
    torch.manual_seed(0)
    ledger, model = current_ledger(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    per_step, before, norm = [], 0, 0.0
    for i, (x, y) in enumerate(batches(every * steps + ragged)):
        (F.cross_entropy(model(x), y) / every).backward()
        if read:
            norm += model[0].weight.grad.norm().item()
        if i % every == every - 1:
            optimizer.step()
            optimizer.zero_grad()
            now = gradient_bytes(counted(ledger))
            per_step.append(now - before)
            before = now
    return {
        "bytes": per_step,
        "deferred": ledger.deferred,
        "late": ledger.late,
        "patched": "grad" in vars(torch.Tensor),
    }


@pytest.mark.slow
def test_accumulation_is_learned_from_the_first_step(ranks):
    once = ranks.call(accumulating, 2, 1).ok().results[0]["bytes"]
    often = ranks.call(accumulating, 2, 8).ok().results[0]
    assert often["bytes"][0] == pytest.approx(8 * once[-1], rel=0.05)
    for size in often["bytes"][1:]:
        assert size == pytest.approx(once[-1], rel=0.05)
    assert often["deferred"] == 7 * 5
    assert not often["patched"]


@pytest.mark.slow
def test_accumulation_can_be_declared(ranks):
    once = ranks.call(accumulating, 2, 1).ok().results[0]["bytes"]
    declared = ranks.call(accumulating, 2, 8, enable={"accumulate": 8}).ok().results[0]
    assert declared["bytes"] == [pytest.approx(once[-1], rel=0.05)] * 6


def test_a_ragged_end_costs_one_late_average(ranks):
    late = ranks.call(ragged_epochs, 2).ok().results[0]
    assert late == [1, 1]


def ragged_epochs():
    """Late averages in each of two epochs of 4 + 4 + 2 backwards, after one that is learned from."""
    torch.manual_seed(0)
    ledger, model = current_ledger(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    late = []
    for _ in range(3):
        before = ledger.late
        loader = batches(10)
        for i, (x, y) in enumerate(loader):
            F.cross_entropy(model(x), y).backward()
            if i % 4 == 3 or i == len(loader) - 1:
                optimizer.step()
                optimizer.zero_grad()
        late.append(ledger.late - before)
    return late[1:]


@pytest.mark.slow
def test_gradients_that_are_read_between_are_averaged_where_they_are_read(ranks):
    read = ranks.call(accumulating, 2, 4, 6, 0, True).ok().results[0]
    often = ranks.call(accumulating, 2, 1).ok().results[0]["bytes"][-1]
    assert read["bytes"][-1] == pytest.approx(4 * often, rel=0.05)


# --- collectives per step ---------------------------------------------------------------------------------------------


def plain_loop():
    return per_step(lambda model, spare, x, y: F.cross_entropy(model(x), y).backward())


def with_unused_parameters():
    return per_step(lambda model, spare, x, y: F.cross_entropy(model(x), y).backward(), spare=True)


def reading_a_metric():
    def step(model, spare, x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        (out.argmax(1) == y).sum().item()
        loss.item()

    return per_step(step)


def with_hooks_on_parameters():
    clipped = set()

    def step(model, spare, x, y):
        for parameter in model.parameters():
            if parameter not in clipped:
                clipped.add(parameter)
                parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        F.cross_entropy(model(x), y).backward()

    return per_step(step)


class Spare(nn.Module):
    def __init__(self, spare):
        super().__init__()
        self.net = net()
        self.spare = nn.Linear(4, 4) if spare else None

    def forward(self, x):
        return self.net(x)


def per_step(step, spare=False, warm=3, steps=5):
    torch.manual_seed(0)
    ledger, model = current_ledger(), Spare(spare)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = {}
    for i, (x, y) in enumerate(batches(warm + steps)):
        if i == warm:
            before = counted(ledger)
        optimizer.zero_grad()
        step(model, spare, x, y)
        optimizer.step()
    after = counted(ledger)
    return {k: (after[k][0] - before.get(k, [0])[0]) / steps for k in after if after[k][0] != before.get(k, [0])[0]}


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net(8)

    def forward(self, x, y):
        logits = self.layers(x)
        return F.cross_entropy(logits, y), logits


def with_its_loss_beside_logits(warm=5, steps=5):
    ledger, model, before = current_ledger(), WithLoss(), {}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i, (x, y) in enumerate(batches(warm + steps)):
        if i == warm:
            before = counted(ledger)
        optimizer.zero_grad()
        model(x, y)[0].backward()
        optimizer.step()
    after = counted(ledger)
    return {k: (after[k][0] - before.get(k, [0])[0]) / steps for k in after if after[k][0] != before.get(k, [0])[0]}


def adversaries(warm=5, steps=5):
    torch.manual_seed(0)
    ledger = current_ledger()
    critic, generator = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Linear(2, 16)
    first, second = torch.optim.SGD(critic.parameters(), 0.1), torch.optim.SGD(generator.parameters(), 0.1)
    for i, (x, _) in enumerate(batches(warm + steps)):
        if i == warm:
            before = counted(ledger)
        fake = generator(torch.randn(len(x), 2))
        first.zero_grad()
        F.softplus(-critic(x)).mean().backward()
        F.softplus(critic(fake.detach())).mean().backward()
        first.step()
        second.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        second.step()
    after = counted(ledger)
    return {k: (after[k][0] - before.get(k, [0])[0]) / steps for k in after if after[k][0] != before.get(k, [0])[0]}


@pytest.mark.quick("plain_loop", "reading_a_metric", "adversaries")
@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        (plain_loop, {"gradient bucket": 1}),  # the loss travels with it
        (with_unused_parameters, {"gradient bucket": 1}),
        (with_its_loss_beside_logits, {"gradient bucket": 1}),
        # The shares of all hooked parameters at once; their order, the loss, and what is left of the gradients.
        (with_hooks_on_parameters, {"all_gather_object": 1, "all_reduce": 3, "gradient average": 1}),
        (reading_a_metric, {"all_reduce": 1, "gradient bucket": 1}),
        # Three losses that nobody looks at. The generator's adds to gradients of the critic that were there to be kept.
        (adversaries, {"gradient bucket": 3}),
    ],
)
def test_collectives_per_step(ranks, loop, wanted):
    for result in ranks.call(loop, 2).ok().results:
        assert result == wanted


def whole_numbers():
    """Losses and gradients of whole numbers, as bits tell them."""
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    x = torch.arange(70.0, dtype=torch.float64).view(35, 2)
    said = []
    for (rows,) in DataLoader(TensorDataset(x), 7):
        model.zero_grad()
        loss = model(rows).sum()
        loss.backward()
        said += [loss.item(), *model.weight.grad.flatten().tolist()]
    return said


@pytest.mark.quick("3")
@pytest.mark.parametrize("nproc", [2, 3, 5])
def test_whole_numbers_stay_whole(ranks, nproc):
    (wanted,) = ranks.call(whole_numbers, 1).ok().results
    assert ranks.call(whole_numbers, nproc).ok().results == [wanted] * nproc


# --- what DDP is told -------------------------------------------------------------------------------------------------


def as_ddp_sees_it():
    """One step under the options given, with the DDP instance that it made."""
    import gc

    torch.manual_seed(0)
    called = []
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for module, name in [
        (default_hooks, "fp16_compress_hook"),
        (default_hooks, "bf16_compress_hook"),
        (powerSGD_hook, "powerSGD_hook"),
    ]:
        original = getattr(module, name)
        setattr(module, name, lambda state, bucket, f=original, n=name: called.append(n) or f(state, bucket))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for x, y in batches(4):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (ddp,) = [o for o in gc.get_objects() if type(o) is nn.parallel.DistributedDataParallel]
    shared = model[0].weight.grad.untyped_storage().data_ptr() == model[0].bias.grad.untyped_storage().data_ptr()
    return {
        "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
        "gradient_as_bucket_view": [ddp.gradient_as_bucket_view, shared],
        "static_graph": ddp.static_graph,
        "device_ids": ddp.device_ids,
        "find_unused_parameters": ddp.find_unused_parameters,
        "called": sorted(set(called)),
        "losses": losses,
    }


@pytest.mark.quick("bucket_cap_mb", "gradient_as_bucket_view-True")
@pytest.mark.parametrize(
    ("option", "value", "seen"),
    [
        ("bucket_cap_mb", 0.5, 0.5),
        ("gradient_as_bucket_view", True, [True, True]),
        ("gradient_as_bucket_view", False, [False, False]),
        ("static_graph", True, True),
        ("find_unused_parameters", True, True),
    ],
)
def test_options_arrive_at_ddp_and_change_no_number(ranks, option, value, seen):
    plain = ranks.call(as_ddp_sees_it, 2).ok().results[0]
    result = ranks.call(as_ddp_sees_it, 2, enable={option: value}).ok().results[0]
    assert result[option] == seen
    assert result["losses"] == pytest.approx(plain["losses"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hook"), [("fp16", "fp16_compress_hook"), ("bf16", "bf16_compress_hook"), ("powersgd", "powerSGD_hook")]
)
def test_compression_hooks_carry_the_gradients(ranks, name, hook):
    plain = ranks.call(as_ddp_sees_it, 2).ok().results[0]
    assert plain["called"] == []
    result = ranks.call(as_ddp_sees_it, 2, enable={"comm_hook": name}).ok().results[0]
    assert result["called"] == [hook]
    assert result["losses"] == pytest.approx(plain["losses"], rel=1e-2)


def running_mean_of_one_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(1, momentum=1.0), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.arange(4.0).unsqueeze(1)), 4):
        model(x).sum().backward()
        optimizer.step()
    return model[0].running_mean.item()


@pytest.mark.slow
def test_batch_norm_sees_this_ranks_rows_if_it_is_told_to(ranks):
    assert ranks.call(running_mean_of_one_step, 2).ok().results == [1.5, 1.5]
    assert ranks.call(running_mean_of_one_step, 2, enable={"sync_batchnorm": False}).ok().results == [0.5, 2.5]


class Mark(torch.autograd.Function):
    """Writes down when backward comes by."""

    @staticmethod
    def forward(ctx, x, events, name):
        ctx.events, ctx.name = events, name
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.events.append(ctx.name)
        return grad, None, None


class Marked(nn.Module):
    def __init__(self, ties, events):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.ties, self.events = ties, events

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = Mark.apply(layer(x), self.events, f"layer {i}")
        return x - x.mean(0) if self.ties else x


def sent():
    """How many collectives DDP has begun on this rank."""
    from ddp_patch.job.job import Job

    return Job.current.one_process.group._get_sequence_number_for_group()


class Events(list):
    """What happened in a backward, and how many buckets had left by then."""

    before = 0

    def append(self, name):
        super().append([name, sent() - self.before])


def marked(ties):
    torch.manual_seed(0)
    said, events = [], Events()
    model = Marked(ties, events)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, _ in data(8):
        events.clear()
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        events.before = sent()
        loss.backward()
        events.append("end")
        optimizer.step()
        said.append(list(events))
    return said[2]


@pytest.mark.parametrize("ties", [False, True])
def test_buckets_leave_while_backward_goes_on(ranks, ties):
    for events in ranks.call(marked, 2, ties, enable={"bucket_cap_mb": 0.0001}).ok().results:
        assert events == [*([f"layer {4 - i}", i] for i in range(5)), ["end", 6]]  # the flags have one of their own


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("hooked", [False, True])
def test_what_is_sent_with_the_last_bucket_is_anew_in_each_step(hooked, accelerated):
    """DDP writes to the gradient that autograd made of it, and has a hook at its node."""
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    dealt, points = DealtTensors(), []
    world = SimpleNamespace(size=2, device=torch.device("cpu"), dealt=dealt, accelerated=accelerated)
    world.reaches_point = lambda what: points.append(what) is not None
    flags = Flags(parameters, world, with_buckets=True)
    node = flags.parameter.view_as(flags.parameter).grad_fn.next_functions[0][0]
    if hooked:
        node.register_hook(lambda *grads: None)
    for number, used in enumerate([(1, 1), (1, 0), (0, 0), (0, 1), (1, 1), (1, 1)]):
        for parameter, has in zip(parameters, used, strict=True):
            parameter.grad = torch.ones(1) if has else None
        loss = PendingReduction(torch.tensor(float(number)), None, 4)
        assert flags.send(loss)
        assert len(points) == number + (
            not accelerated
        )  # a device has a thread of its own, which comes there by itself
        assert flags.parameter.grad[:2].tolist() == list(used)
        assert flags.arrived() == [p for p, has in zip(parameters, used, strict=True) if not has]
        assert loss.wait() == 2 * number / 4
        assert points == ["the last gradients and 1 number(s) of losses"] * (number + 1)
        flags.parameter.grad.mul_(0.5)


# --- waiting for a device ---------------------------------------------------------------------------------------------


def test_gradients_in_half_precision_are_looked_at_once(monkeypatch):
    """Each look waits for the device: one for all parameters, not one for each."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(12)]
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    looks, real = [], torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: looks.append(1) or real(tensor))
    scale = LossScale(Ledger())
    scale.before_step(torch.optim.SGD(parameters, 0.1))
    assert len(looks) == 1
    parameters[7].grad[1] = torch.inf
    scale.before_step(torch.optim.SGD(parameters, 0.1))
    assert len(looks) == 2
    assert all(parameter.grad is None for parameter in parameters)


def test_a_hook_cannot_hide_that_gradients_overflowed():
    """A step with them is left out, and the scale becomes a smaller one."""
    scale, grad = LossScale(Ledger()), torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])
    scale.activate()
    changed = scale.seen_by(lambda grad: grad.nan_to_num(0.0).clamp(-0.5, 0.5))(grad)
    torch.testing.assert_close(changed, torch.tensor([0.5, torch.inf, -torch.inf, torch.nan]), equal_nan=True)


def test_ddp_leaves_arguments_where_they_are(ranks):
    """Lengths of packed sequences stay on the host, and a model may be there beside a GPU."""
    for result in ranks.call(as_ddp_sees_it, 2).ok().results:
        assert result["device_ids"] is None


TURNS = {
    "in each step": [0, 1] * 6,
    "and then do not": [0, 1] * 6 + [1] * 70,
    "of sixty steps": [number // 60 % 2 for number in range(300)],
}


def ddps_of_heads_that_take_turns(turns):
    """Losses, and how many instances of DDP the steps make."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    heads = [nn.Linear(6, 4), nn.Linear(6, 4)]
    model = nn.Sequential(nn.Linear(16, 6), nn.Tanh(), heads[0])
    optimizer = torch.optim.Adam([*model[0].parameters(), *heads[0].parameters(), *heads[1].parameters()], 0.05)
    made, making = [], nn.parallel.DistributedDataParallel.__init__

    def counted(*args, **kwargs):
        made.append(1)
        making(*args, **kwargs)

    nn.parallel.DistributedDataParallel.__init__ = counted
    losses = []
    for turn, (x, y) in zip(TURNS[turns], batches(len(TURNS[turns])), strict=True):
        model[2] = heads[turn]
        loss = F.cross_entropy(model(x.double()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    nn.parallel.DistributedDataParallel.__init__ = making
    torch.set_default_dtype(torch.float32)
    return losses, len(made)


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "count"), [("in each step", 4), ("and then do not", 5), ("of sixty steps", 5)])
def test_heads_that_take_turns_get_no_ddp_in_each_step(ranks, turns, count):
    ((wanted, none),) = ranks.call(ddps_of_heads_that_take_turns, 1, turns).ok().results
    assert none == 0
    for losses, made in ranks.call(ddps_of_heads_that_take_turns, 2, turns).ok().results:
        assert losses == pytest.approx(wanted, rel=1e-9)
        assert made == count


def test_heads_that_take_turns_keep_a_hook_that_is_asked_for(ranks):
    """It is DDP's: without DDP, gradients would silently travel as they are."""
    for _, made in (
        ranks.call(ddps_of_heads_that_take_turns, 2, "in each step", enable={"comm_hook": "fp16"}).ok().results
    ):
        assert made == 12


def forwards_of_ddp(compiles):
    """How often DDP's own forward runs in six steps."""
    torch.manual_seed(0)
    model, count = net(), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if compiles:
        model.compile(backend="eager")
    forward = nn.parallel.DistributedDataParallel.forward

    def counting(*args, **kwargs):
        nonlocal count
        count += 1
        return forward(*args, **kwargs)

    nn.parallel.DistributedDataParallel.forward = counting
    for x, y in batches(6):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()  # imports TorchDynamo (torch 2.13)
    nn.parallel.DistributedDataParallel.forward = forward
    return [count, "torch._dynamo.eval_frame" in sys.modules]


@pytest.mark.slow
def test_ddps_own_forward_is_for_what_is_compiled(ranks):
    """A third of what a small model's forward costs: it enters the profiler, and TorchDynamo's guards."""
    assert ranks.call(forwards_of_ddp, 2, False).ok().results == [[0, True]] * 2
    [count, _] = ranks.call(forwards_of_ddp, 2, True).ok().results[0]
    assert count >= 5  # the first one is observed


@pytest.mark.parametrize(
    ("table", "frozen", "head", "elsewhere"),
    [
        ("cpu", "cpu", "cpu", []),
        ("cpu", "cpu", "meta", ["table.weight", "frozen.weight"]),
        ("meta", "cpu", "meta", ["frozen.weight"]),
        ("cpu", "meta", "cpu", ["frozen.weight"]),
    ],
)
def test_ddp_gets_parameters_of_one_type_of_device(table, frozen, head, elsewhere):
    from ddp_patch.replica.replica import parameters_elsewhere

    model = nn.ModuleDict(
        {
            "table": nn.Embedding(100, 4, device=table),
            "frozen": nn.Linear(4, 4, bias=False, device=frozen).requires_grad_(False),
            "head": nn.Linear(4, 2, bias=False, device=head),
        }
    )
    found = [id(parameter) for parameter in parameters_elsewhere(model)]
    assert [name for name, parameter in model.named_parameters() if id(parameter) in found] == elsewhere


@pytest.mark.parametrize("declared", [None, 4])
def test_a_short_last_group_whose_gradients_are_clipped_changes_no_schedule(declared):
    schedule = AccumulationSchedule(declared)
    for _ in range(3):
        averaged = []
        for size in (4, 4, 1):
            for _ in range(size):
                averaged.append(schedule.backward())
            schedule.read()
            schedule.step()
    assert averaged == [False, False, False, True, False, False, False, True, False]
