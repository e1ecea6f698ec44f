"""``python -m ddp_patch scale``: counts of steps, rows and runs; the arithmetic on given seconds; what cannot be measured."""

import dataclasses
import json
import sys

import pytest
import torch

from ddp_patch import plan
from ddp_patch.measure import arguments
from ddp_patch.measure.busy import Cores
from ddp_patch.measure.facts import facts
from ddp_patch.measure.network import FEW, MANY, link
from ddp_patch.measure.runs import Measured, Spec, perform
from ddp_patch.plan.network import Link, Shape, ring
from ddp_patch.plan.profile import read
from ddp_patch.scale import command
from ddp_patch.scale.points import as_profile, points
from ddp_patch.scale.text import lost_to, written

TRAIN = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
other = torch.optim.AdamW(model[0].parameters(), lr=0.01)
optimizer = torch.optim.AdamW(model[2].parameters(), lr=0.01)
for epoch in range(int(sys.argv[1])):
    for x, y in DataLoader(TensorDataset(torch.randn(50, 8), torch.randn(50, 1)), batch_size=12):
        loss = torch.nn.functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        other.step()
        optimizer.step()
    for x, y in DataLoader(TensorDataset(torch.randn(9, 8), torch.randn(9, 1)), batch_size=5):
        loss = torch.nn.functional.mse_loss(model(x), y).item()
    torch.save(model.state_dict(), "model.pt")
print("the end")
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    path.write_text(TRAIN)
    return path


# --- one run ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_steps_that_are_asked_for_are_measured_with_the_rows_of_all_ranks(train, tmp_path):
    (train.parent / "src").mkdir()
    script = train.rename(train.parent / "src" / "train.py")
    (train.parent / "argparse.py").write_text("raise SystemExit('not of the script, which is in another folder')")
    spec = Spec(script=script, args=("100",), ranks=2, grows=True, warmup=3, steps=7)
    run = tmp_path / "run"
    run.mkdir()
    found = perform(spec, run, train.parent, 120, 1)
    assert [step["rows"] for step in found.steps] == [24, 2, 24, 24, 2, 24, 24]  # from the fifth batch on
    assert all(0 < step["loading"] + step["waiting"] + step["optimizer"] < step["total"] for step in found.steps)
    assert (found.facts["parameters"], found.facts["gradient_bytes"]) == (41, 164)
    assert (found.facts["optimizer"], found.facts["precision"], found.facts["learning_rate"]) == ("adamw", "fp32", 0.01)
    assert 0 < found.network["few"] < found.network["many"]
    for noted in found.by_rank:
        end = noted[-1]
        assert (end["kind"], end["how"]) == ("end", "enough")
        assert end["taken"] == 3 + 7 + 4  # four more for Python's profiler
    assert not (train.parent / "model.pt").exists()


def test_a_rate_may_be_none_or_a_tensor_and_is_the_largest_that_a_scheduler_names():
    weight = torch.nn.Parameter(torch.ones(3))
    adafactor = torch.optim.SGD([weight], lr=0.1)
    adafactor.param_groups[0]["lr"] = None  # as transformers' Adafactor has it, which finds its own
    assert "learning_rate" not in facts([adafactor])
    of_tensor = torch.optim.Adam([weight], lr=torch.tensor(0.25))
    assert facts([of_tensor])["learning_rate"] == 0.25
    warming = torch.optim.SGD([weight], lr=0.5)
    torch.optim.lr_scheduler.LambdaLR(warming, lambda step: (step + 1) / 100)
    assert warming.param_groups[0]["lr"] == 0.005
    assert facts([warming])["learning_rate"] == 0.5
    cycle = torch.optim.SGD([weight], lr=0.5)
    torch.optim.lr_scheduler.OneCycleLR(cycle, max_lr=2.0, total_steps=100)
    assert facts([cycle])["learning_rate"] == 2.0


def test_parameters_are_those_that_get_gradients_whoever_holds_them():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 4), torch.nn.Linear(4, 2), torch.nn.Linear(2, 1), torch.nn.Linear(1, 1)
    ).float()  # whatever is the default
    model[0].requires_grad_(False)  # held, and frozen
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[1].parameters()], lr=0.1)
    # model[2] is held by nobody, and model[3] gets no gradient.
    model[:3](torch.ones(3, 8, dtype=torch.float32)).sum().backward()
    found = facts([optimizer])
    assert (found["parameters"], found["gradient_bytes"]) == (10 + 3, 4 * (10 + 3))
    model[1:].requires_grad_(False)
    assert facts([optimizer])["parameters"] == 36 + 10


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_script_is_measured_and_planned_from(train, capsys):
    assert command(["train.py", "--ranks", "2", "--steps", "6", "--scaling", "strong", "1000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("train.py: 41 parameters, 164 bytes of gradients in each step; one rank takes ")
    assert "The batch stays, 12 rows in a step" in out
    assert "the batch grows" not in out.replace("stays", "")
    assert "the end" not in out
    keeps = 12 * (8 + 4 + 1 + 1) * 4  # x, what ReLU gives, predictions, y: 12 rows in float32
    assert f"for 12 rows, and keeps {keeps} bytes for their backward." in " ".join(out.split())
    held = read("ddp_patch-scale/scale.json")
    assert held["activation_bytes"] == pytest.approx(keeps)
    assert [(run.ranks, run.rows) for run in held["runs"]] == [(1, 12), (2, 12)]
    picture = (train.parent / "ddp_patch-scale" / "scale.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert sorted(path.name for path in train.parent.iterdir()) == ["ddp_patch-scale", "train.py"]
    line = out.splitlines()[-1].split()
    assert line[:4] == ["python", "-m", "ddp_patch", "plan"]
    assert plan.command(line[4:]) == 0
    assert "Held against what was measured" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.some("the script")
@pytest.mark.parametrize("way", ["the script", "the environment"])
def test_a_script_whose_batch_grows_anyway_has_no_table_in_which_it_stays(train, monkeypatch, capsys, way):
    if way == "the script":
        train.write_text(f'import ddp_patch\nddp_patch.enable(batch="per_device")\n{TRAIN}')
    else:
        monkeypatch.setenv("DDP_PATCH_BATCH", "per_device")
    more = ["--ranks", "2", "--steps", "5", "--warmup", "3", "--scaling", "strong", "--no-plot"]
    assert command(["train.py", *more, "1000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The batch stays" not in out
    assert "Each rank has 12 rows, the batch grows" in out
    assert "The batch grew also where it was to stay" in out
    assert [(run.ranks, run.rows) for run in read("ddp_patch-scale/scale.json")["runs"]] == [(1, 12), (2, 24)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is no script. Write python -m ddp_patch scale script.py"),
        (["nothing.py"], "can't open file 'nothing.py'"),
        (["--rank", "2", "train.py"], "unknown option --rank. Did you mean '--ranks'?"),
        (["train.py", "--rank", "2"], "--rank behind train.py is no option of ours. Did you mean '--ranks'?"),
        (["train.py", "--ranks"], "--ranks needs a value"),
        (["train.py", "--ranks", "0"], "--ranks 0: '0' is no number of ranks from 1 to 99,999. Write --ranks 2"),
        (["train.py", "--ranks", "1,x"], "--ranks 1,x: 'x' is no number"),
        (["train.py", "--ranks", "1"], "--ranks 1 leaves nothing to compare. Write --ranks 1,2"),
        (["train.py", "--steps", "1"], "--steps 1 is no whole number of at least 2. Write --steps 30"),
        (["train.py", "--scaling", "both ways"], "Write --scaling strong, weak or both"),
        (["train.py", "--timeout", "-3"], "--timeout -3 is no number of seconds above 0. Write --timeout 600"),
        (["train.py", "--no-plot=1"], "--no-plot takes no value"),
        (["train.py", "--out", "train.py"], "--out train.py cannot be written to"),
    ],
)
def test_what_cannot_be_done_is_2_with_the_line_to_write(train, capsys, given, said):
    assert command(given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("python -m ddp_patch scale: ")
    assert said in err


def test_without_matplotlib_nothing_is_run(train, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command(["train.py"]) == 2
    assert "Write pip install 'ddp_patch[plot]', or --no-plot" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more", "said"),
    [
        ("print('nothing is trained')", [], "train.py alone ended without two steps of an optimizer"),
        ("raise ValueError('a mistake')", [], "train.py alone failed (exit code 1)"),
        ("import time; time.sleep(60)", ["--timeout", "2"], "was not done after 2 seconds. Write a longer --timeout"),
        (
            TRAIN.replace("int(sys.argv[1])", "3"),
            [],
            "ended after 15 steps, and 10 to warm up and 30 to measure need some 46. Let it train longer, or write "
            "--warmup 3 --steps 6\n",
        ),
        (TRAIN.replace("int(sys.argv[1])", "2"), [], "ended after 10 steps, and 10 to warm up and 30 to measure need"),
    ],
    ids=["no steps", "fails", "late", "too early", "far too early"],
)
def test_a_script_that_cannot_be_measured_is_1_with_the_reason(train, capsys, script, more, said):
    train.write_text(script)
    assert command(["train.py", "--no-plot", *more]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "a mistake" not in script or "  | ValueError: a mistake" in err
    assert "10 steps" not in err or "Let it train longer\n" in err  # fewer steps would not be enough either


@pytest.mark.long
def test_as_many_steps_as_are_proposed_are_enough(train, capsys):
    train.write_text(TRAIN.replace("int(sys.argv[1])", "3"))
    assert command(["train.py", "--no-plot", "--scaling", "strong"]) == 1
    proposed = capsys.readouterr().err.partition("or write ")[2].split()
    assert command(["train.py", "--no-plot", "--scaling", "strong", *proposed]) == 0


def test_options_stand_before_the_script_or_right_behind_it(train):
    def split(*argv):
        given, path, module, args = arguments.split("scale", argv, ("--steps",), ("--no-plot",))
        assert (path.name, module) == ("train.py", "train" if "-m" in argv else "")
        return given, args

    assert split("--steps", "3", "train.py", "--lr", "1") == ({"--steps": "3"}, ("--lr", "1"))
    assert split("train.py", "--steps=3", "--no-plot", "a", "--steps", "9") == (
        {"--steps": "3", "--no-plot": "1"},
        ("a", "--steps", "9"),
    )
    assert split("train.py", "--", "--steps", "9") == ({}, ("--steps", "9"))
    assert split("train.py", "--", "--step", "9") == ({}, ("--step", "9"))
    assert split("-m", "train", "--no-plot") == ({"--no-plot": "1"}, ())


# --- arithmetic -------------------------------------------------------------------------------------------------------


def run(ranks, total, *, grows=False, rows=32, **parts):
    step = {
        **dict.fromkeys(("loading", "waiting", "effects", "optimizer", "backward"), 0.0),
        "rows": rows,
        "backwards": 1,
        **parts,
    }
    steps = [{**step, "total": total * factor} for factor in (0.5, 0.9, 1.0, 1.1, 9.0)]
    network = {"few": 2e-4, "many": 2e-4 + MANY / 1e9} if ranks > 1 else {}
    spec = Spec(script=__file__, ranks=ranks, grows=grows, warmup=1, steps=5)
    return Measured(spec=spec, steps=steps, python=0.01 * (ranks > 1), facts={"parameters": 7}, network=network)


RUNS = [run(1, 0.1), run(2, 0.06, waiting=0.01), run(4, 0.05), run(4, 0.125, grows=True, rows=128), run(4, 0.07)]


def test_speed_up_and_efficiency_are_of_the_medians():
    one, two, four, grown = points(RUNS)
    assert [its.ranks for its in (one, two, four, grown)] == [1, 2, 4, 4]
    near = pytest.approx
    assert (one.speed_up, one.efficiency) == (1, 1)
    assert (two.step, two.speed_up, two.efficiency) == (0.06, near(0.1 / 0.06), near(0.1 / 0.12))
    assert (four.step, four.low, four.high) == (near(0.06), 0.05, 0.07)  # of two runs
    assert (two.low, two.high) == (near(0.054), near(0.066))  # quartiles of one
    assert (grown.rows, grown.speed_up, grown.throughput) == (128, near(3.2), near(128 / 0.125))
    for its in (one, two, four, grown):
        parts = {name: part for name, part in its.parts.items() if name != "backward"}
        assert sum(parts.values()) == near(its.step)
    assert lost_to(two, one)["waiting"] == near(two.parts["waiting"])


def test_rows_that_were_counted_tell_whether_a_batch_grew():
    alone, near = run(1, 0.1), pytest.approx
    grown = [alone, run(2, 0.11, rows=64)]  # the script itself says per_device, and strong scaling was measured
    base, two = points(grown)
    assert (two.grows, two.turned, two.rows, two.efficiency) == (True, True, 64, near(0.1 / 0.11))
    told = said_of(grown)
    assert "The batch stays" not in told
    assert "The batch grew also where it was to stay" in told
    assert "Leave that out" in told
    assert [its["rows"] for its in as_profile(grown, [base, two], 2)["runs"]] == [32, 64]
    both = [*grown, run(2, 0.12, rows=64, grows=True)]
    assert [(its.grows, its.step, its.turned) for its in points(both)] == [(False, 0.1, False), (True, 0.12, True)]
    stayed = [alone, run(2, 0.06), run(2, 0.07, grows=True)]  # the script says global
    assert [(its.grows, its.step, its.turned) for its in points(stayed)] == [(False, 0.1, False), (False, 0.06, True)]
    assert 'Write ddp_patch.enable(batch="per_device")' in said_of(stayed)
    unknown = [run(1, 0.1, rows=0), run(2, 0.06, rows=0), run(2, 0.11, rows=0, grows=True)]
    assert [(its.rows, its.grows, its.turned) for its in points(unknown)] == [(1, 0, 0), (1, 0, 0), (2, 1, 0)]
    fewer = [alone, run(4, 0.11, rows=100, grows=True)]  # there are no more
    base, four = points(fewer)
    assert four.speed_up == near(0.1 / 32 * 100 / 0.11)
    assert sum(lost_to(four, base).values()) == near(0.11 - 0.1 / 32 * 100 / 4)  # to a step at 100%
    assert "also where" not in said_of(RUNS)


def said_of(runs, cores=4, repeat=1, busy=0.0):
    """What is written of runs, in one line."""
    told = {"name": "a.py", "parameters": 7, "gradients": 28, "threads": "1"}
    return " ".join(written(points(runs), **told, cores=cores, repeat=repeat, busy=busy).split())


def test_what_is_lost_is_said():
    told = said_of(RUNS, cores=2, repeat=2, busy=0.3)
    assert "Below 80% from 4 ranks on: of its 60.0 ms it loses" in told
    assert "Never below 80%." in told  # 3.2 times with a batch that grows... is exactly there
    assert "4 ranks share 2 cores here" in told
    assert "Other programs had 30% of the cores meanwhile" in told
    assert 0 <= Cores.look().share() <= 1


def test_several_ranks_that_are_worth_it_behind_one_that_is_not_are_no_from_on():
    told = said_of([run(1, 0.1), run(2, 0.09, waiting=0.03), run(4, 0.026)])
    assert "Below 80% on 2 ranks: the 90.0 ms of 2 ranks lose 30.0 ms to waiting" in told


def test_losses_are_said_also_where_each_is_small_and_rows_that_stay_do_not_get_fewer():
    small = {"waiting": 0.006, "optimizer": 0.005, "loading": 0.005}
    for its, said in (
        (run(2, 0.07, **small), "of its 70.0 ms it loses 10.0 ms to ddp_patch's own Python and 6.00 ms to waiting"),
        (
            run(2, 0.14, grows=True, rows=64),
            "of its 140 ms it loses 30.0 ms to computing as many rows as alone, which takes",
        ),
    ):
        told = said_of([run(1, 0.1), its], busy=0.1)
        assert f"Below 80% from 2 ranks on: {said}" in told
        assert "Other programs" not in told


def test_the_link_is_the_one_whose_ring_takes_what_was_measured():
    for ranks in (2, 4):
        true = Link(1e9, 5e-5)
        few, many = (ring(size, Shape(1, ranks, true, true)).seconds for size in (FEW, MANY))
        found = link(ranks, few, many)
        assert found["latency_seconds"] == pytest.approx(5e-5, rel=0.01)
        assert found["bandwidth_bytes_per_second"] == pytest.approx(1e9, rel=0.01)


def test_on_accelerators_what_the_host_waits_for_is_computing_and_it_is_said(tmp_path):
    runs = [dataclasses.replace(its, facts={"parameters": 7, "memory_bytes": 80e9}) for its in RUNS]
    path = tmp_path / "scale.json"
    path.write_text(json.dumps(as_profile(runs, points(runs), devices=4)))
    two = read(str(path))["runs"][1]
    assert "exposed_communication_seconds" not in two.parts
    assert two.parts["compute_seconds"] == pytest.approx(two.step - 0.01)  # less Python
    told = said_of(runs, cores=0)
    assert "Ranks compute on accelerators" in told
    assert "Ranks compute on accelerators" not in said_of(RUNS)


def test_the_profile_names_what_plan_reads(tmp_path):
    path = tmp_path / "scale.json"
    path.write_text(json.dumps(as_profile(RUNS, points(RUNS), devices=4)))
    found = read(str(path))
    assert found["batch_rows"] == 32
    assert [(its.ranks, its.rows) for its in found["runs"]] == [(1, 32), (2, 32), (4, 32), (4, 128)]
    assert found["network"]["within"]["bandwidth_bytes_per_second"] == pytest.approx(1e9)


CHUNKS = """\
import torch
from torch.utils.data import DataLoader

class Chunks(torch.utils.data.Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, i):
        return torch.ones(6, 8)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Chunks(), batch_size=None):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_batches_that_cannot_grow_are_said_and_the_rest_is_measured(train, capsys):
    train.write_text(CHUNKS)
    given = ["train.py", "--ranks", "2", "--warmup", "2", "--steps", "5", "--no-plot"]
    assert command(given) == 0
    out = capsys.readouterr().out
    assert "Nothing was measured with a batch that grows (--scaling strong leaves that out): " in out
    assert "cannot let batches grow that the dataset makes" in out
    (train.parent / "again").mkdir()
    assert command([*given, "--scaling", "weak"]) == 1
