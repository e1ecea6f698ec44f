"""``python -m ddp_patch profile``: traces with known seconds, what is advised, one run on two ranks, what cannot be done."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_patch import plan
from ddp_patch.__main__ import COMMANDS, USAGE
from ddp_patch.measure.network import MANY
from ddp_patch.measure.tracer import ANCHOR, LAYER, STEP
from ddp_patch.pace import KINDS
from ddp_patch.plan.profile import read
from ddp_patch.profile import chrome, command, timeline
from ddp_patch.profile.advice import advice
from ddp_patch.profile.found import Bucket, Found, Rank, found
from ddp_patch.profile.page import page
from ddp_patch.profile.text import written
from ddp_patch.profile.timeline import Collective, Timeline, TracedStep, overlap, union

# --- traces -----------------------------------------------------------------------------------------------------------


def event(name, begin, duration, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": begin, "dur": duration, "args": args}


def annotation(name, begin, duration, tid=1, **args):
    return event(name, begin, duration, "user_annotation", tid, **args)


BACKWARD = "autograd::engine::evaluate_function: "
ON_CPU = [
    annotation(ANCHOR, 1000, 1),
    annotation(STEP, 1000, 1000),
    annotation(LAYER + "Net", 1100, 300),
    annotation(LAYER + "Net.a (Linear)", 1150, 200),
    event("aten::addmm", 1160, 100, **{"Sequence number": 5, "Fwd thread id": 0}),
    event(BACKWARD + "AddmmBackward0", 1500, 150, tid=2, **{"Sequence number": 5, "Fwd thread id": 1}),
    event(BACKWARD + "torch::autograd::AccumulateGrad", 1650, 40, tid=2),
    annotation("gloo:all_reduce", 1600, 200, tid=3, **{"Input Dims": [[2000]], "Input type": ["float"]}),
    annotation("gloo:all_reduce", 1750, 100, tid=4, **{"Input Dims": [[30, 100]], "Input type": ["double"]}),
]
NOTED = {"anchor": 50.0, "spans": [["loading", 50.00005, 50.0001, "a.py:3"], ["waiting", 50.0007, 50.0009, "a.py:7"]]}


def test_what_nobody_waits_for_is_hidden():
    (step,) = timeline.read({"traceEvents": ON_CPU}, NOTED).steps
    assert step.seconds == 1000
    assert [(kind, round(begin), round(end)) for kind, begin, end, _ in step.spans] == [
        ("loading", 50, 100),
        ("waiting", 700, 900),
    ]
    assert [(each.bytes, each.begin, each.end) for each in step.collectives] == [(8000, 600, 800), (24000, 750, 850)]
    assert [each.hidden for each in step.collectives] == pytest.approx([100, 0], abs=1e-3)
    assert (step.hidden, step.exposed) == pytest.approx((100, 150), abs=1e-3)


def test_where_waiting_is_not_clocked_operations_hide_collectives():
    (step,) = timeline.read({"traceEvents": ON_CPU}, {**NOTED, "clocks": False}).steps
    assert (step.hidden, step.exposed) == pytest.approx((90, 160), abs=1e-3)  # from 1600 until 1690, of 1600 to 1850


def test_a_layers_time_is_its_own_in_forward_and_backward_without_waiting():
    layers = timeline.read({"traceEvents": ON_CPU}, NOTED).layers
    assert layers["Net.a (Linear)"] == (200, 150)
    assert layers["Net"] == (100, 0)
    assert layers["gradients: added up, copied into DDP's buckets"] == (0, 40)
    waits = {**NOTED, "spans": [["waiting", 50.0002, 50.0003, "a.py:7"]]}
    assert timeline.read({"traceEvents": ON_CPU}, waits).layers["Net.a (Linear)"] == pytest.approx((100, 150), abs=1e-3)


def test_on_an_accelerator_kernels_hide_collectives_and_are_the_layers_time():
    kernels = [
        event("gemm", 3000, 70, "kernel", 9, **{"External id": 4}),
        event("gemm_backward", 1500, 100, "kernel", 9, **{"External id": 6}),
        event("ncclDevKernel_AllReduce", 1550, 90, "kernel", 8, **{"In msg nelems": 1000, "dtype": "Float"}),
    ]
    starts = [
        event("aten::mm", 1160, 10, **{"External id": 4, "Sequence number": 5}),
        event("aten::mm", 1510, 10, tid=2, **{"External id": 6}),
    ]
    found = timeline.read({"traceEvents": [*ON_CPU, *starts, *kernels]}, NOTED)
    (step,) = found.steps
    assert [(each.bytes, each.hidden) for each in step.collectives] == [(4000, 50)]
    assert (step.hidden, step.exposed) == (50, 40)
    assert found.layers["Net.a (Linear)"] == (70, 100)


def test_intervals():
    assert union([(3, 4), (0, 2), (1, 2.5)]) == [(0, 2.5), (3, 4)]
    assert overlap([(1, 3.5), (3.5, 9)], [(0, 2.5), (3, 4)]) == 2.5


def test_ranks_stand_side_by_side():
    link = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 1, "ts": 1160, "id": 1}
    events = chrome.joined([{"traceEvents": [*ON_CPU, link]}] * 2, [NOTED] * 2)["traceEvents"]
    assert {each["pid"] for each in events} == {0, 1}
    assert len({each["id"] for each in events if each["ph"] == "s"}) == 2
    names = [each["args"]["name"] for each in events if each["ph"] == "M" and each["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]
    waits = [each for each in events if each["name"] == "waits for other ranks"]
    assert [(each["pid"], round(each["ts"]), each["args"]["line"]) for each in waits] == [
        (0, 700, "a.py:7"),
        (1, 700, "a.py:7"),
    ]


# --- what is advised --------------------------------------------------------------------------------------------------

NOTHING = dict.fromkeys(("computing", "waiting", "loading", "effects", "optimizer", "python"), 0.0)


def profile(*ranks, lines=None, told=None, **more):
    made = [Rank(sum(its.values()), {**NOTHING, **its}, 0.0, lines or {}, Timeline([], {})) for its in ranks]
    facts = {"parameters": 7, "gradient_bytes": 28}
    return Found(
        name="a.py",
        rows=8.0,
        facts=facts,
        ledger=told or {},
        ranks=made,
        layers={"Net.<a> (Linear)": (2.0, 1.0)},
        **more,
    )


TOGETHER = [{"computing": 1.0, "waiting": 1.0}] * 2
LOADER = {"loaders": {"DataLoader(D, 9 rows, batch_size=3, num_workers=0)": "rows dealt"}}
CASES = {
    "loader": (profile({"computing": 0.5, "loading": 0.5}, told=LOADER), ["num_workers=2"]),
    "workers": (
        profile({"computing": 0.5, "loading": 0.5}, told={"loaders": {"L(num_workers=4)": "", **LOADER["loaders"]}}),
        ["more workers"],
    ),
    "quick": (
        profile({"computing": 0.003, "loading": 0.001}, told=LOADER),
        ["less work in the dataset's __getitem__; a worker takes as long"],
    ),
    "effects": (profile({"computing": 0.8, "effects": 0.2}, lines={("effects", "a.py:9"): 0.2}), ["a.py:9"]),
    "a late rank": (profile({"computing": 1.0}, {"computing": 0.6, "waiting": 0.4}), ["wait for rank 0"]),
    "whole": (
        profile({"computing": 1.0}, {"computing": 1.0}, told={"on_whole": {"Net": "it draws"}}),
        ["computes all of Net: it draws"],
    ),
    "gathers": (
        profile(
            *TOGETHER,
            lines={("waiting", "a.py:5"): 1.0},
            told={"steps_of_job": 10, "gathers": [{"function": "f", "line": "a.py:5", "collectives": 20, "bytes": 80}]},
        ),
        ["f at a.py:5 gathers whole batches: 2.0 times a step, 4 bytes each"],
    ),
    "bytes": (
        profile(*TOGETHER, buckets=[Bucket(MANY, 0.1, 0.9, 0.3)], network={"few": 0.01, "many": 0.8}),
        ["16.8 MB in 1 bucket, 900 ms together, of which 300 ms are hidden. At most 600 ms", "bf16"],
    ),
    "latency": (
        profile(
            *TOGETHER, buckets=[Bucket(MANY, 0.1, 0.9, 0.3)], network={"few": 0.01, "many": 0.2}, meetings={"sum": 2}
        ),
        [
            "Gradients wait for ranks that come late",
            "(without ranks that come late it would be 200 ms)",
            "for each step.",
            "Ranks meet besides",
            "2.0 times by sum",
        ],
    ),
    "in order": (
        profile({"loading": 0.2, "optimizer": 0.3, "python": 0.4, "effects": 0.1}),
        ["1. Steps are short", "2. The optimizer's step is long", "where it has it. 3. A step waits for its batch"],
    ),
    "optimizer": (
        profile(*[{"computing": 0.7, "optimizer": 0.3}] * 2),
        [
            "Every rank steps the whole optimizer: 30% (300 ms)",
            "ZeroRedundancyOptimizer shares the work, once the",
            "--to ddp",
        ],
    ),
    "nothing": (profile({"computing": 1.0}), ["Nothing to change", "costs most is Net.<a> (Linear): 2.00 s in the"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_costliest_is_said_first_with_what_to_write(case):
    its, wanted = CASES[case]
    text = " ".join(written(its).split())
    place = 0
    for words in wanted:
        place = text.index(words, place)
    assert len(advice(its)) <= 3
    html = page(its, {}, 20, 3)
    assert "Net.<a>" not in html
    assert "Net.&lt;a&gt;" in html


@pytest.mark.parametrize("own", [0.0, None])
def test_ranks_have_the_same_parts_also_where_pythons_cost_on_one_is_too_small_to_see(own):
    took = {"kind": "took", **dict.fromkeys(KINDS, 0.0), "total": 1.0, "backward": 0.4, "rows": 4.0, "backwards": 1}
    noted = [[*[took] * 4, {"kind": "told"}, {"kind": "python", "seconds": seconds}] for seconds in (0.1, own)]
    run = SimpleNamespace(
        by_rank=noted, steps=[took], spec=SimpleNamespace(script=Path("a.py"), ranks=2), facts={}, network={}
    )
    first, second = found(run, [Timeline([], {})] * 2).ranks
    assert first.parts == pytest.approx({**dict.fromkeys(KINDS, 0.0), "computing": 0.9, "python": 0.1})
    assert second.parts == pytest.approx({**dict.fromkeys(KINDS, 0.0), "computing": 1.0, "python": 0.0})


def test_on_accelerators_waiting_is_what_no_kernel_hid_and_it_is_said_whose_seconds_these_are():
    took = {
        "kind": "took",
        **dict.fromkeys(KINDS, 0.0),
        "total": 1.0,
        "waiting": 0.7,
        "backward": 0.4,
        "rows": 4.0,
        "backwards": 1,
    }
    noted = [[*[took] * 4, {"kind": "told"}]] * 2
    for memory, waiting in (({}, 0.7), ({"memory_bytes": 80e9}, 0.2)):
        facts = {"parameters": 5, "gradient_bytes": 20, **memory}
        run = SimpleNamespace(
            by_rank=noted, steps=[took], spec=SimpleNamespace(script=Path("a.py"), ranks=2), facts=facts, network={}
        )
        its = found(run, [Timeline([TracedStep(1e6, [], exposed, 0.0, []) for exposed in (1e5, 3e5)], {})] * 2)
        assert its.mean("waiting") == pytest.approx(waiting)
        assert its.mean("computing") == pytest.approx(1 - waiting)
        for text in (written(its), page(its, {}, 20, 3)):
            assert ("Ranks compute on accelerators" in text) is bool(memory)


def test_few_gradients_are_no_other_meeting():
    took = {
        "kind": "took",
        **dict.fromkeys(KINDS, 0.0),
        "total": 1.0,
        "waiting": 0.4,
        "backward": 0.4,
        "rows": 4.0,
        "backwards": 1,
    }
    noted = [[*[took] * 4, {"kind": "told"}]] * 2
    facts = {"parameters": 5, "gradient_bytes": 20}
    run = SimpleNamespace(
        by_rank=noted, steps=[took], spec=SimpleNamespace(script=Path("a.py"), ranks=2), facts=facts, network={}
    )
    sums = [Collective("all_reduce", size, 0.0, 4e5, 1e5) for size in (4, 92)]

    def its(collectives):
        return found(run, [Timeline([TracedStep(1e6, collectives, 0.0, 0.0, [])], {})] * 2, busy=0.3)

    assert [each.bytes for each in its(sums).buckets] == [92]
    assert its(sums).meetings == {"all_reduce": 1}
    text = " ".join(written(its(sums[1:])).split())
    assert "besides for gradients" not in text
    assert "92 bytes in 1 bucket" in text
    assert "Other programs had 30% of the cores meanwhile" in text
    assert "Other programs had 30%" in page(its(sums), {}, 20, 3)


# --- the command ------------------------------------------------------------------------------------------------------

TRAIN = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for count, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(4000, 64), torch.randn(4000, 1)), batch_size=16)):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", count)
    if count == int(sys.argv[1]):
        break
open("the end", "w")
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.slow
def test_a_script_is_profiled_on_two_ranks(train, capfd):
    assert command(["train.py", "--nproc=2", "--warmup", "3", "--steps", "5", "--traced", "2", "1000"]) == 0
    out, err = capfd.readouterr()
    # 1 step begins the clock; 3, 5 and 2 follow, and 4 in which Python is profiled; the next one does not end.
    assert out == "".join(f"step {count}\n" for count in range(15))
    assert "train.py on 2 ranks: a step of 16 rows takes" in err
    assert re.search(r"0 +17\.0 kB +[\d.]+ [mu]s", err), err  # one bucket of 4,225 gradients and of what tells of them
    assert "Net.first (Linear)" in err
    assert sorted(path.name for path in train.parent.iterdir()) == ["ddp_patch-profile", "train.py"]
    folder = train.parent / "ddp_patch-profile"
    html = (folder / "index.html").read_text()
    assert html.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r"""(src|href)=["']?https?:""", html)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {each["pid"] for each in events} == {0, 1}
    for rank in range(2):
        names = [each["name"] for each in events if each["pid"] == rank]
        assert names.count(STEP) == names.count(LAYER + "Net.first (Linear)") == 2
    # A rank's 8 rows of x, of what ReLU gives, of the predictions and of y: float32 each.
    keeps = 8 * (64 + 64 + 1 + 1) * 4
    assert f"A rank keeps {keeps / 1000:.2f} kB for the backward of its 8 rows." in " ".join(err.split())
    assert "A rank keeps" in html
    held = read(str(folder / "profile.json"))
    assert held["activation_bytes"] == 2 * keeps  # of all 16
    assert [(run.ranks, run.rows) for run in held["runs"]] == [(2, 16)]
    assert plan.command(["--profile", str(folder / "profile.json"), "--ranks", "2"]) == 0


LATE = """\
import time
import ddp_patch
ddp_patch.enable(view="local")
import torch
import torch.distributed as dist

model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4000, 64), torch.randn(4000, 1))
for x, y in torch.utils.data.DataLoader(data, batch_size=16):
    if dist.get_rank() == 1:
        time.sleep(0.03)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.long
def test_in_the_local_view_what_ddp_waits_for_is_no_computing(train, capfd):
    train.write_text(LATE)
    assert command(["train.py", "--nproc", "2", "--warmup", "3", "--steps", "5", "--traced", "2", "--no-plot"]) == 0
    err = capfd.readouterr().err
    assert "The other ranks wait for rank 1" in err
    (run,) = read("ddp_patch-profile/profile.json")["runs"]
    waits = run.parts["exposed_communication_seconds"]
    assert 0.012 < waits < run.step - 0.012  # rank 0 waits for 0.03 seconds, rank 1 for next to nothing
    events = json.loads((train.parent / "ddp_patch-profile" / "trace.json").read_text())["traceEvents"]
    waited = [each["dur"] for each in events if each["pid"] == 0 and each["name"] == "waits for other ranks"]
    assert len(waited) == 2
    assert min(waited) > 20_000  # microseconds


@pytest.mark.long
def test_a_script_may_go_on_to_its_end(train, capfd):
    given = [
        "train.py",
        "--nproc",
        "1",
        "--warmup",
        "2",
        "--steps",
        "3",
        "--traced",
        "1",
        "--no-plot",
        "--to-end",
        "20",
    ]
    assert command(given) == 0
    assert capfd.readouterr().out.endswith("step 19\nstep 20\n")
    assert not (train.parent / "the end").exists()  # it was written in a copy of the folder


FOLDS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

for fold in range(10):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 4)), 4):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_a_script_that_makes_an_optimizer_for_each_fold_is_measured(train, capfd):
    train.write_text(FOLDS)
    assert command(["train.py", "--nproc", "1", "--warmup", "5", "--steps", "20", "--no-plot"]) == 0
    assert "5 parameters" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [("raise SystemExit(3)", "failed (exit code 3)"), (TRAIN.replace("int(sys.argv[1])", "9"), "ended after 10 steps")],
    ids=["fails", "too early"],
)
def test_a_script_that_cannot_be_profiled_is_1_with_the_reason(train, capfd, script, said):
    train.write_text(script)
    assert command(["train.py", "--nproc", "1", "--no-plot"]) == 1
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is no script. Write python -m ddp_patch profile script.py"),
        (["train.py", "--nproc", "0"], "--nproc 0 is no whole number of at least 1. Write --nproc 2"),
        (["train.py", "--nproc", "1,2"], "--nproc 1,2 is no whole number"),
        (["--ranks", "2", "train.py"], "unknown option --ranks. The options are --no-plot, --nproc, "),
        (["train.py", "--traced", "0"], "--traced 0 is no whole number of at least 1. Write --traced 3"),
    ],
)
def test_what_cannot_be_done_is_2_with_the_line_to_write(train, capsys, given, said):
    assert command(given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_without_matplotlib_nothing_is_run(train, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command(["train.py"]) == 2
    assert "Write pip install 'ddp_patch[plot]', or --no-plot" in capsys.readouterr().err


def test_the_help_lists_every_command():
    assert [name for name in COMMANDS if f"\n  {name:<18}  " not in USAGE] == []
