"""The report: what stands in the way, at which line, and what to write instead, which then works."""

import functools
import inspect
import random
import re
import sys
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddp_patch
from ddp_patch.batch.observation import Observation
from ddp_patch.batch.world import World
from ddp_patch.diagnosis.report import Report
from ddp_patch.ledger import Gathers, Ledger
from ddp_patch.pace import KINDS, Pace, StepTime


class Layer(nn.Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)


class MatchesRows(Layer):
    def forward(self, x):
        x = self.linear(x)
        return torch.softmax(x @ x.T, 1) @ x  # told


class MatchesColumns(Layer):
    def forward(self, x):
        x = self.linear(x)
        return (torch.softmax(x[:, :, None] * x[:, None], 1) @ x[:, :, None]).squeeze(2)


class Reads(Layer):
    def forward(self, x):
        x = self.linear(x)
        return x / 2 if max(x.abs().amax(1).tolist()) > 10 else x  # told


class Chooses(Layer):
    def forward(self, x):
        x = self.linear(x)
        return torch.where(x.abs().amax(1, keepdim=True) > 10, x / 2, x)


class ReadsWeights(Layer):
    def forward(self, x):
        if self.linear.weight.norm() > 100:  # told
            x = x / 2
        return self.linear(x)


class ChoosesByWeights(Layer):
    def forward(self, x):
        return self.linear(torch.where(self.linear.weight.norm() > 100, x / 2, x))


class Keeps(Layer):
    def __init__(self):
        super().__init__()
        self.all = []

    def forward(self, x):
        self.all.append(self.linear(x))
        return self.all[-1] * 2


class KeepsInAnAttribute(Layer):
    def forward(self, x):
        self.last = self.linear(x)
        return self.last * 2


class GoesOn(Layer):
    def __init__(self):
        super().__init__()
        self.last = torch.zeros(8, 6)

    def forward(self, x):
        self.last = self.linear(x) + self.last.detach() / 2
        return self.last


class Returns(Layer):
    def forward(self, x):
        last = self.linear(x)
        return last * 2, last


class ReturnsADistribution(Layer):
    def forward(self, x):
        out = self.linear(x)
        return out, torch.distributions.Normal(out, 1.0)


PROMPT = torch.ones(6, requires_grad=True)


class TrainsAnother(Layer):
    def forward(self, x):
        return self.linear(x + PROMPT)  # told


class TrainsItsOwn(Layer):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.linear(x + self.prompt)


class DrawsInPython(Layer):
    def forward(self, x):
        return self.linear(x) * (1 if random.random() < 0.5 else 2)


class IsGivenTheDraw(Layer):
    def forward(self, x, is_doubled=None):
        return self.linear(x) * (2 if is_doubled else 1)


class Annealed(Layer):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def forward(self, x):
        return self.linear(x) * self.scale


class AnnealedTensor(Layer):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(1.0)

    def forward(self, x):
        return self.linear(x) * self.scale


temperature = 1.0


class AnnealedByTheScript(Layer):
    def forward(self, x):
        return self.linear(x) * temperature


class NamesOneAlike(Layer):
    def __init__(self):
        super().__init__()
        self.temperature = 2.0

    def forward(self, x):
        return self.linear(x) * self.temperature


class Counts(Layer):
    def forward(self, x):
        SEEN.append(1)
        return self.linear(x) * (2 if len(SEEN) > 3 else 1)


class CountsItself(Layer):
    def forward(self, x):
        self.seen = True
        return self.linear(x)


class Hooks(Layer):
    def forward(self, x):
        x = self.linear(x)
        x.register_hook(lambda grad: grad / 2)  # told
        return x


class LeavesHooks(Layer):
    def forward(self, x):
        return self.linear(x)


SEEN = []
PAIRS = {  # what is said, whether with the line, what to write instead -> a module that does so, one that does the other
    ("Tensor.matmul looks at the whole batch", True, ""): (MatchesRows, MatchesColumns),
    ("reads values of the batch, and the script may branch on them", True, "Choose with torch.where instead"): (
        Reads,
        Chooses,
    ),
    ("reads values of tensors, and may branch on them otherwise later", True, "Choose with torch.where instead"): (
        ReadsWeights,
        ChoosesByWeights,
    ),
    ("keeps a batch for later", False, "Return it instead"): (Keeps, Returns),
    ("returns a Normal, which is handed on as it is", False, "Return the tensors, and make it in the script"): (
        ReturnsADistribution,
        Returns,
    ),
    ("looks at a batch that it was not given", False, "Give it as an argument"): (GoesOn, KeepsInAnAttribute),
    ("a tensor of shape (6,) that is no parameter of the module is trained", True, "Make it a parameter"): (
        TrainsAnother,
        TrainsItsOwn,
    ),
    ("draws from Python's or NumPy's generator", False, "Draw in the script, and pass what was drawn"): (
        DrawsInPython,
        IsGivenTheDraw,
    ),
    ("Annealed.scale changes from call to call", False, "A tensor may change: torch.tensor(0.5)"): (
        Annealed,
        AnnealedTensor,
    ),
    ("what its code reads (temperature) changes from call to call", False, "A tensor may change: torch.tensor(0.5)"): (
        AnnealedByTheScript,
        NamesOneAlike,
    ),
    ("changes what it may branch on, outside of its attributes", False, "Keep that in attributes of the module"): (
        Counts,
        CountsItself,
    ),
    ("registers hooks on activations", True, "Register them in the script, on what forward returns"): (
        Hooks,
        LeavesHooks,
    ),
}
STEPS = 4


def reports():
    """Train each module alone; give what the report says of it."""
    global temperature  # noqa: PLW0603 — scripts have such
    said = {}
    for kind in (kind for pair in PAIRS.values() for kind in pair):
        ddp_patch.disable()
        ddp_patch.enable(report=True)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), kind(), nn.Linear(6, 4))
        optimizer = torch.optim.SGD([*model.parameters(), PROMPT], lr=0.01)
        for x, y in DataLoader(TensorDataset(torch.randn(8 * STEPS, 6), torch.randint(0, 4, (8 * STEPS,))), 8):
            if hasattr(model[1], "scale"):
                model[1].scale = model[1].scale * 0.9
            temperature *= 0.9
            z = model[1](model[0](x))
            optimizer.zero_grad()
            F.cross_entropy(model[2](z[0] if isinstance(z, tuple) else z), y).backward()
            optimizer.step()
        report = ddp_patch.report()
        gathers = sum(entry.collectives for entry in report.ledger.gathers.values())
        said[kind.__name__] = str(report), gathers == report.ledger.collectives["all_gather"]
    return said


@pytest.fixture(scope="module")
def said(ranks):
    """What the reports on all modules say."""
    return functools.cache(lambda: ranks.call(reports, 2).ok().results[0])


def line_told(kind):
    """The line of a class that is marked."""
    lines, start = inspect.getsourcelines(kind)
    return start + next(number for number, line in enumerate(lines) if "# told" in line)


@pytest.mark.parametrize("told", PAIRS, ids=lambda told: told[0])
def test_the_report_names_what_stands_in_the_way_and_what_to_write(said, told):
    why, has_line, remedy = told
    kind, instead = PAIRS[told]
    report, _ = said()[kind.__name__]
    (line,) = [line for line in report.splitlines() if line.startswith(f"    {kind.__name__} (") and why in line]
    assert not has_line or f"at test_report.py:{line_told(kind)}" in line
    assert remedy in line
    assert "On batches" not in said()[instead.__name__][0]


def test_every_gather_is_counted_where_it_was_made(said):
    assert all(is_complete for _, is_complete in said().values())


def test_the_report_says_what_part_of_the_work_is_split(said):
    assert "MatchesColumns (42 parameters): 100.0 % of its products" in said()["MatchesColumns"][0]
    matches = next(line for line in said()["MatchesRows"][0].splitlines() if "%" in line and "MatchesRows" in line)
    assert "so at most 1." in matches


class AfterSums(nn.Module):
    """Layers of torch's behind what is computed of all rows."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(self.first(x.cumsum(0)).relu())


def share_of_layers():
    ddp_patch.disable()
    ddp_patch.enable(report=True)
    model = AfterSums()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 4, (48,))), 8):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return str(ddp_patch.report())


def test_layers_behind_what_all_rows_are_needed_for_compute_rows(ranks):
    for report in ranks.call(share_of_layers, 2).ok().results:
        assert "AfterSums (356 parameters): 100.0 % of its products" in report


class MatchesEarlier(Layer):
    def forward(self, x):
        return self.linear(x).cumsum(0)  # told


class Fails(Layer):
    def forward(self, x):
        return self.linear(x) @ torch.ones(3, 3)  # told


def reported(kind, optimizers=1):
    """Train a module with an optimizer for each of its parameters, as far as it goes; give what the report says."""
    ddp_patch.disable()
    ddp_patch.enable()
    torch.manual_seed(0)
    model = globals()[kind]()
    parts = [[*model.parameters()]] if optimizers == 1 else [[parameter] for parameter in model.parameters()]
    steps = [torch.optim.SGD(part, lr=0.01) for part in parts]
    for (x,) in DataLoader(TensorDataset(torch.randn(8 * STEPS, 6)), 8):
        try:
            model(x).sum().backward()
        except RuntimeError:
            break
        for optimizer in steps:
            optimizer.step()
    return str(ddp_patch.report())


@pytest.mark.parametrize("optimizers", [1, 2])
def test_a_step_is_what_all_optimizers_do(ranks, optimizers):
    for text in ranks.call(reported, 2, "MatchesEarlier", optimizers).ok().results:
        assert f"Tensor.cumsum at test_report.py:{line_told(MatchesEarlier)} gathers the batch 1.0 times a step" in text
        several = ", counting those of several optimizers as one" * (optimizers > 1)
        assert re.search(rf"gradient bucket: \d\.\d\d per optimizer step \({STEPS} steps{several}\)", text)
        assert "nothing to change" not in text


def time_first():
    """Of ``[T, B]`` no function keeps time apart, and rows it does."""
    model = torch.nn.LSTM(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        model(torch.randn(3, 8, 4))[0].square().mean().backward()
        optimizer.step()
    return str(ddp_patch.report())


def test_a_dimension_that_was_tried_first_stands_in_nobodys_way(ranks):
    for text in ranks.call(time_first, 2, enable={"report": True}).ok().results:
        assert "nothing to change" in text
        assert "dealt along dimension 1" in text
        assert "On batches" not in text


def test_what_costs_little_is_not_called_nothing(said):
    text = said()["Annealed"][0]
    assert "\n    nothing that costs much: of Annealed (42 parameters) only small parts run on batches" in text


class Settings:
    """Of one call."""

    def __init__(self, factor):
        self.factor = factor


class Told(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x, settings):
        return self.linear(x) * settings.factor


def given_another_object_in_each_call():
    model = Told()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for i in range(12):
        loss = model(torch.randn(8, 6), Settings(i)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return str(ddp_patch.report())


def test_an_object_that_is_another_one_in_each_call_is_named_by_its_class(ranks):
    report = ranks.call(given_another_object_in_each_call, 2).ok().results[0]
    assert "its argument [0][1], a Settings, changes from call to call. Give it the tensors that this holds" in report


def test_a_forward_that_raises_is_not_said_to_mix_rows(ranks):
    with pytest.raises(RuntimeError) as caught:
        torch.ones(8, 6) @ torch.ones(3, 3)
    for text in ranks.call(reported, 2, "Fails").ok().results:
        said = f"({caught.value}), at test_report.py:{line_told(Fails)}"
        whole = f"Fails (42 parameters) is computed whole by every rank: its forward raises RuntimeError {said}"
        assert f"to change: {whole}" in text
        assert text.count("to change") == 1


# --- where the time goes ------------------------------------------------------------------------------------------------


class Slow(nn.Module):
    """Takes a millisecond for each row."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        time.sleep(0.001 * len(x))
        return self.linear(x)


class SlowRows(torch.utils.data.Dataset):
    def __len__(self):
        return 8 * 24

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((6,), float(index)), index % 2


def clocked(profiled, slow_rank=None):
    """The parts of a step's time in milliseconds, and what the report says of them."""
    torch.manual_seed(0)
    if profiled:
        sys.setprofile(lambda *args: None)
    model, rank = Slow(), World.get().rank
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(SlowRows(), 8):
        loss = F.cross_entropy(model(x), y)
        if rank == slow_rank:
            time.sleep(0.02)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.setprofile(None)
    report = ddp_patch.report()
    shown = report.ledger.pace.summary()
    parts = {name: 1000 * (getattr(shown, name) or 0) for name in ("total", *KINDS, "computing")}
    return {**parts, "steps": shown.steps, "python": shown.python, "text": str(report)}


def test_the_time_of_a_step_is_told_by_its_parts(ranks):
    for its in ranks.call(clocked, 2, False, enable={"report": True}).ok().results:
        assert its["steps"] == 24 - 3 - 4
        assert its["total"] == pytest.approx(sum(its[name] for name in (*KINDS, "computing")))
        assert its["loading"] > 4 * 0.5
        assert its["computing"] > 4 * 1.0
        assert 0 < 1000 * its["python"] < 2 * its["total"]  # of another step, in which something else may have run
        assert re.search(
            r"In short\n    by the clock (about|slower)(.*\n)+?    Slow \(14 parameters\): its", its["text"]
        )
        assert (
            ", the mean of the middle half of 17 steps (of 24, the first 3 are left out, and the 4 in which Python's"
            in its["text"]
        )
        [alone] = re.findall(
            r"one process, with as many cores as a rank has, would take about ([\d.]+) ms\n", its["text"]
        )
        assert 8 * 1.5 - 2 * 1000 * its["python"] < float(alone) < 2 * its["total"]


@pytest.mark.slow
def test_a_rank_that_is_late_is_what_the_others_wait_for(ranks):
    first, second = ranks.call(clocked, 2, False, 1).ok().results
    assert first["waiting"] > 15
    assert second["computing"] > 20
    assert first["python"] is None  # nobody asked for a report
    assert "would take about" not in first["text"]
    assert ", the mean of the middle half of 21 steps (of 24, the first 3 are left out):\n" in first["text"]


def test_a_script_that_profiles_itself_is_left_alone(ranks):
    for its in ranks.call(clocked, 2, True, enable={"report": True}).ok().results:
        assert its["python"] is None


def test_what_is_waited_for_in_an_optimizers_step_is_no_part_of_it():
    pace, heard = Pace(), []
    pace.heard = lambda total, spent: heard.append((total, spent))
    for _ in range(2):
        pace.end("loading", pace.begin())
        pace.steps()
        began = pace.begin()
        time.sleep(0.05)
        pace.end("waiting", began)
        pace.stepped(profiles=False)
    ((total, spent),) = heard
    assert sum(spent.values()) <= total
    assert 0 <= spent["optimizer"] < 0.05 <= spent["waiting"]


def test_what_waits_is_no_python_of_ours():
    """And what the profiler costs is taken off."""
    pace = Pace()
    for _ in range(15):
        for _ in range(300):
            pace.end("waiting", pace.begin())
        pace.steps()
        pace.stepped(profiles=True)
    assert 0 <= pace.summary().python < 0.01
    assert pace.summary().waiting < pace.summary().total


@pytest.mark.parametrize(("function", "remedy"), [("Tensor.numpy", "register_rowwise"), ("Tensor.item", "torch.where")])
def test_what_reads_values_is_told_what_to_write(function, remedy):
    seen = Observation(lambda tensor: False)
    with seen.calling(function, True):
        seen.note_value_read()
    assert remedy in seen.why_not_split


# --- what it says of numbers ------------------------------------------------------------------------------------------


class Clocked:
    """A clock that has read what a test says: milliseconds of a step, of which some are Python's and the rest split."""

    def __init__(self, total, python, steps=43, made=48, profiled=2):
        idle = dict.fromkeys(KINDS, 0.0)
        self._time = StepTime(steps, made, profiled, total / 1000, python=python / 1000, **idle)

    def summary(self):
        return self._time


def told(**ledger):
    """The report of a model that is split."""
    split = {"replicas": {"Net": "outermost"}, "work": {"Net": 1.0}, "steps": 48, "iterations": 48}
    return str(Report(2, "the CPU", Ledger(**{**split, **ledger})))


@pytest.mark.parametrize(
    ("total", "python", "said"),
    [
        (
            8.0,
            1.0,
            "by the clock about 1.8 times as fast as one process: a step takes 8.0 ms, one process about 14.0 ms",
        ),
        (8.0, 4.0, "by the clock about as fast as one process"),
        (8.0, 6.0, "by the clock slower than one process: a step takes about 2.0 times as long (8.0 ms, one process"),
    ],
)
def test_the_clock_is_told_first_and_slower_is_called_slower(total, python, said):
    text = told(pace=Clocked(total, python))
    assert text.partition("  In short\n")[2].startswith(f"    {said}")
    assert ("larger batches" in text) == ("slower" in said)
    assert not re.search(r"\b0\.\d times", text)


def test_steps_of_nothing_but_ddp_patchs_own_work_are_compared_with_nothing():
    assert "by the clock" not in told(pace=Clocked(8.0, 8.0))


@pytest.mark.parametrize(
    ("clocked", "ledger", "said"),
    [
        ({}, {}, "43 steps (of 48, the first 3 are left out, and the 2 in which Python's profiler ran):"),
        ({"steps": 45, "profiled": 0}, {}, "45 steps (of 48, the first 3 are left out):"),
        ({"steps": 512, "made": 840}, {"steps": 840, "iterations": 420}, "the last 512 of 840 steps of optimizers:"),
    ],
)
def test_the_steps_that_were_clocked_are_told_beside_those_that_were_made(clocked, ledger, said):
    assert f"the mean of the middle half of {said}" in told(pace=Clocked(8.0, 1.0, **clocked), **ledger)


def test_what_is_sent_is_told_by_message_and_objects_have_no_size():
    ledger = Ledger()
    for _ in range(3):
        ledger.count("all_gather_object", 0)
    ledger.count("all_reduce", 8)
    text = told(collectives=ledger.collectives, collective_bytes=ledger.collective_bytes)
    assert (
        "all_gather_object: 0.06 per optimizer step (48 steps), of Python objects, whose bytes are not counted" in text
    )
    assert "all_reduce: 0.02 per optimizer step (48 steps), 8 bytes each\n" in text
    assert " 0 bytes" not in text


def test_gathers_are_no_part_of_what_is_at_most_as_fast():
    at_most = "Net: its forward at most 2.00 times as fast as in one process"
    assert f"{at_most}\n    nothing to change" in told()
    often, rarely = Gathers(48, 48, 4800), Gathers(1, 1, 100)
    assert f"{at_most}, not counting the gathers below\n" in told(gathers={("torch.matmul", "train.py:9"): often})
    assert f"{at_most}\n" in told(gathers={("torch.matmul", "train.py:9"): rarely})
    assert "Net: its forward no faster than in one process\n" in told(work={"Net": 0.0})


def test_what_was_gathered_is_told_in_numbers_that_are_none_of_them_0():
    gathers = {
        ("torch.cdist", "train.py:7"): Gathers(1, 1, 1280),
        ("a gradient", "train.py:8"): Gathers(0, 12, 384),
        ("main.<locals>.scale", "train.py:9"): Gathers(12, 0, 0),
    }
    text = told(gathers=gathers).partition("Gathered whole")[2]
    assert "torch.cdist at train.py:7: 1 call, 1 gather, 1,280 bytes per rank\n" in text
    assert "a gradient at train.py:8: 12 gathers, 384 bytes per rank\n" in text
    assert "    scale at train.py:9: 12 calls, no gather: all that it got was whole already\n" in text


def scale(x: torch.Tensor):
    return x / x.abs().max()


class Scripted(nn.Module):
    def forward(self, x):
        return x.cumsum(0)


def scripted():
    """What TorchScript computes has the name that the script gave it."""
    function, method = torch.jit.script(scale), torch.jit.script(Scripted())
    for (x,) in DataLoader(TensorDataset(torch.randn(16, 6)), 8):
        function(x), method(x)
    return str(ddp_patch.report())


def test_what_torchscript_compiled_has_the_scripts_names(ranks):
    for text in ranks.call(scripted, 2, enable={"report": True}).ok().results:
        assert re.search(r"\n    scale at test_report\.py:\d+: 2 calls, 2 gathers", text), text
        assert re.search(r"\n    Scripted\.forward at test_report\.py:\d+: 2 calls", text), text
        assert "<locals>" not in text


@ddp_patch.register_rowwise(dims={"x": 0})
def powers(x, weight):
    return torch.linalg.vander(x[:, 0], N=3) @ weight


@ddp_patch.register_rowwise(dims={"x": 1})
def of_columns(x):
    return torch.linalg.vander(x[0], N=3)


@ddp_patch.register_reduction(kind="mean", dims={"x": 0})
def roughness(x):
    return torch.linalg.vander(x[:, 0], N=3).mean()


@ddp_patch.register_rowwise
def cubed(x):
    return torch.linalg.vander(x[:, 0], N=4)


class CallsCubed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(cubed(x))


def registered():
    torch.manual_seed(0)
    model = CallsCubed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 3)), 8):
        powers(x, torch.ones(3, 4))
        of_columns(x)
        optimizer.zero_grad()
        (model(x).mean() + roughness(x)).backward()
        optimizer.step()
    return str(ddp_patch.report())


@pytest.mark.parametrize("view", ["global", "local"])
def test_registered_functions_that_are_split_are_named(ranks, view):
    for text in ranks.call(registered, 2, enable={"view": view}).ok().results:
        lines = text.partition("Functions that you registered\n")[2]
        if view == "local":  # where everything is on this rank's rows
            assert not lines
            continue
        assert "    powers: 4 calls on this rank's rows\n" in lines
        assert "    roughness: 4 calls on this rank's rows\n" in lines
        assert "    of_columns: 4 calls on every rank, of whole batches or plain tensors\n" in lines
        assert re.search(r"\n    cubed: \d+ calls on this rank's rows\n", lines), lines


def one_model_without_a_batch():
    """Train a model on one row, as of a graph, and another on what came out of it."""
    ddp_patch.disable()
    ddp_patch.enable(report=True)
    first, second = nn.Linear(6, 3), nn.Linear(6, 2)
    for model, x in ((first, torch.randn(1, 20, 6)), (second, torch.randn(20, 6))):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return str(ddp_patch.report())


def test_a_model_that_no_batch_reaches_is_named_beside_one_that_is_split(ranks):
    for said in ranks.call(one_model_without_a_batch, 2).ok().results:
        summary, whole = said.partition("On the whole batch")[::2]
        assert "to change: Linear (21 parameters) is computed whole by every rank: no batch reaches it" in summary
        assert (
            "Linear (21 parameters): no batch reaches it: its first tensor has fewer rows than there are ranks" in whole
        )
        assert "Linear (14 parameters): 100.0 %" in whole
