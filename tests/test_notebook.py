"""Functions called on several processes from a notebook's kernel, and from a script: a real kernel, by nbclient."""

import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from conftest import PATIENCE
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from ddp_patch.job import program

pytestmark = pytest.mark.slow

DEFINED = """
import copy, os, tempfile, time, torch
import ddp_patch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    def forward(self, x):
        return self.inner(x)

class Outcome:
    def __init__(self, loss, answers):
        self.loss, self.answers = loss, answers

class TooHot(Exception):
    pass

def train(model, optimizer, scheduler, epochs):
    for epoch in range(epochs):
        for inputs, targets in DataLoader(TensorDataset(x, y), 8, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.9f} on {ddp_patch.world_size()}")
    model.eval()
    torch.save(model, "whole.pt")
    return Outcome(loss.item(), model(x))

def prepare(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
"""
CELLS = {
    "defined": DEFINED,
    # Twice: the second call goes on where the first one left weights, moments, rate and generators.
    "numbers": """
net = Net()
alone, launched = prepare(copy.deepcopy(net)), prepare(net)
state = torch.get_rng_state()
wanted = [train(*alone, epochs=2), train(*alone, epochs=1), torch.rand(1)]
torch.set_rng_state(state)
found = [ddp_patch.launch(train, *launched, nproc=2, epochs=2), ddp_patch.launch(train, *launched, 1, nproc=2), torch.rand(1)]
for a, b in zip(wanted, found):
    print(bool(abs(getattr(a, "loss", a) - getattr(b, "loss", b)) < 1e-9), type(a) is type(b))
print(torch.allclose(wanted[1].answers, found[1].answers, rtol=1e-9), type(found[1].answers))
print(all(torch.allclose(p, q, rtol=1e-9) for p, q in zip(alone[0].state_dict().values(), net.state_dict().values())))
print(net.training, launched[1].param_groups[0]["lr"] == alone[1].param_groups[0]["lr"], launched[2].last_epoch)
""",
    "decorated": """
@ddp_patch.enable(nproc=2)
def count(depth=1):
    return [ddp_patch.world_size(), *(count(depth - 1) if depth else [])]

print(count())
""",
    "bare": """
os.environ["DDP_PATCH_NPROC"] = "2"
@ddp_patch.enable
def count():
    return ddp_patch.world_size()

print(count())
del os.environ["DDP_PATCH_NPROC"]
""",
    "raised": """
def heat(temperature):
    if temperature > 100:
        raise TooHot(temperature)
try:
    ddp_patch.launch(heat, 451, nproc=2)
except TooHot as error:
    print("caught", error.args)
ddp_patch.launch(heat, 452, nproc=2)
""",
    "left": "def leave(): raise SystemExit(7)\nddp_patch.launch(leave, nproc=2)",
    "killed": "def die(): os.kill(os.getpid(), 9)\nddp_patch.launch(die, nproc=2)",
    "plain": "ddp_patch.enable(nproc=2)",
    "block": "with ddp_patch.enable(nproc=2):\n    print('never')",
    "nested": "ddp_patch.launch(lambda: ddp_patch.launch(print, nproc=2), nproc=2)",
    "lock": "import threading\nlock = threading.Lock()\ndef wait(): lock.acquire()\nddp_patch.launch(wait, nproc=2)",
    "no function": "ddp_patch.launch(5, nproc=2)",
    "live": """
def talk():
    import sys
    from tqdm import tqdm
    for _ in tqdm(range(3), file=sys.stderr):
        pass
    print("a", end="")
    print("b")
ddp_patch.launch(talk, nproc=2)
""",
    "one": "print(ddp_patch.launch(lambda a, b: a + b, 1, nproc=1, b=2), ddp_patch.is_enabled())",
    "nothing is left": """
mine = open(f"/proc/self/task/{os.getpid()}/children").read().split()
print(sorted(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ddp_patch_call")), mine)
""",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each cell printed, by stream, and the error that it ended with."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    client = NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", allow_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        client.execute(cwd=str(folder))
    found = {}
    for name, cell in zip(CELLS, notebook.cells, strict=True):
        said = {"stdout": "", "stderr": "", "error": "", "traceback": ""}
        for output in cell.outputs:
            if output.output_type == "stream":
                said[output.name] += output.text
            elif output.output_type == "error":
                said |= {"error": f"{output.ename}: {output.evalue}", "traceback": "\n".join(output.traceback)}
        found[name] = said
    assert not found["defined"]["error"], found["defined"]
    return found


@pytest.mark.long
def test_a_cells_function_learns_on_two_processes_what_it_does_in_the_kernel(said):
    assert not said["numbers"]["error"], said["numbers"]["traceback"] + said["numbers"]["stderr"]
    lines = said["numbers"]["stdout"].splitlines()
    assert [line.replace("on 2", "on 1") for line in lines[3:6]] == lines[:3]
    assert all(line.endswith("on 2") for line in lines[3:6])
    assert lines[6:9] == ["True True"] * 3
    assert lines[9:] == ["True <class 'torch.Tensor'>", "True", "False True 3"]


def test_a_decorated_function_runs_on_ranks_whenever_it_is_called(said):
    assert said["decorated"]["stdout"] == "[2, 2]\n", said["decorated"]
    assert said["bare"]["stdout"] == "2\n", said["bare"]


def test_what_it_raises_is_raised_in_the_cell_with_the_ranks_traceback(said):
    assert said["raised"]["stdout"] == "caught (451,)\n", said["raised"]
    assert said["raised"]["error"] == "TooHot: 452"
    assert "In rank " in said["raised"]["traceback"]
    assert "raise TooHot(temperature)" in said["raised"]["traceback"]
    assert said["left"]["error"] == "SystemExit: 7"


def test_a_rank_that_is_killed_is_an_error_of_the_cell(said):
    assert said["killed"]["error"].startswith("LaunchError: ddp_patch.launch(die): the ranks ended with exit code 137")
    assert "was ended by SIGKILL" in said["killed"]["stderr"]


@pytest.mark.parametrize("cell", ["plain", "block"])
def test_the_line_alone_names_the_way(said, cell):
    assert "LaunchError: This is the kernel of a notebook" in said[cell]["error"]
    assert "ddp_patch.launch(train, nproc=2), or @ddp_patch.enable(nproc=2) above it" in said[cell]["error"]
    assert said[cell]["stdout"] == ""


def test_what_cannot_be_launched_says_why(said):
    assert "LaunchError: ddp_patch.launch(print) where ddp_patch is enabled already" in said["nested"]["error"]
    assert "launch(wait): 'lock', which it uses cannot be handed to other processes" in said["lock"]["error"]
    assert "OptionError: ddp_patch.launch(5): it takes a function" in said["no function"]["error"]


def test_bars_and_prints_come_as_they_are(said):
    assert said["live"]["stdout"] == "ab\n"
    assert "3/3" in said["live"]["stderr"]


def test_one_process_is_the_call_itself(said):
    assert said["one"]["stdout"] == "3 False\n"


def test_nothing_is_left(said):
    assert said["nothing is left"]["stdout"] == "[] []\n", said["nothing is left"]


SLOW = """
def wait():
    print(os.getpid(), flush=True)
    time.sleep(600)
ddp_patch.launch(wait, nproc=2)
"""


def heard(client, kind):
    """Wait for a message of a kind, of a stream for one that says a process."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        content = message["content"]
        if message["msg_type"] == kind and content.get("text", "0").strip().isdigit():
            return content
    raise AssertionError(f"no {kind}")


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(is_there):
    end = time.monotonic() + 30
    while is_there() and time.monotonic() < end:
        time.sleep(0.05)
    return not is_there()


def test_an_interrupt_ends_the_ranks_and_the_kernel_goes_on_and_takes_them_with_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute(DEFINED + SLOW, stop_on_error=False)  # which would drop the next one
        pid = int(heard(client, "stream")["text"])
        manager.interrupt_kernel()
        assert heard(client, "error")["ename"] == "KeyboardInterrupt"
        assert gone(lambda: is_running(pid))
        assert gone(lambda: list(tmp_path.glob("ddp_patch_call_*")))
        client.execute(SLOW)
        pid = int(heard(client, "stream")["text"])
        manager.shutdown_kernel(now=True)  # as by Restart: killed
        assert gone(lambda: is_running(pid))
        assert gone(lambda: list(tmp_path.glob("ddp_patch_call_*")))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


RANK = "import pathlib, sys, time; pathlib.Path(sys.argv[1], str(time.time())).touch(); time.sleep(600)"


@pytest.mark.parametrize("caller", ["ends", "has ended"])
def test_an_agent_that_is_told_to_end_leaves_nothing_of_the_call(caller, tmp_path):
    folder = tmp_path / "call"
    folder.mkdir()
    environ = {**os.environ, "DDP_PATCH_CALLER": str(os.getpid() if caller == "ends" else os.getppid())}
    command = [sys.executable, "-m", "ddp_patch.job.agent", "2", sys.executable, "-c", RANK, str(folder)]
    with subprocess.Popen(command, env=environ) as agent:
        if caller == "ends":  # one of its threads is there still, and it is the parent
            gone(lambda: len(list(folder.iterdir())) < 2)
            agent.terminate()
        assert agent.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not folder.exists()


def run(*command, stdin=None, cwd=None, **env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    return subprocess.run(
        [sys.executable, *command], env={**environ, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1", **env},
        input=stdin, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


SCRIPT = """
import ddp_patch
print("once")
def sizes(): return ddp_patch.world_size()
print(ddp_patch.launch(sizes, nproc=2))
"""


@pytest.mark.long
def test_a_script_without_a_guard_and_one_from_standard_input_call_functions_too(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    for done in (run(str(tmp_path / "train.py")), run("-", stdin=SCRIPT)):
        assert (done.returncode, done.stdout) == (0, "once\n2\n"), done.stderr


HANDED_BACK = """
import os, sys
import torch
from torch import nn
import ddp_patch

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("center", torch.zeros(2))
        self.register_buffer("later", None)

    def forward(self, x):
        self.center = self.center * 0.5 + 1
        self.later = torch.ones(3)
        return self.inner(x) - self.center

def train(model, what):
    with torch.no_grad():
        model(torch.ones(4, 2))
        model.inner.weight.fill_(2.0)
    if what == "a class":
        sys.path.insert(0, os.path.join(os.path.dirname(sys.argv[0]), "aside"))
        from beside import BadData
        raise BadData("row 7")
    return (x for x in [1]) if what == "a generator" else None

for what in ("nothing", "a generator", "a class"):
    torch.manual_seed(0)
    model = Centred()
    try:
        ddp_patch.launch(train, model, what, nproc=2)
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
    print(model.center.tolist(), model.later is not None and model.later.tolist(), model.inner.weight.sum().item())
"""


@pytest.mark.long
def test_what_changed_comes_back_whatever_the_result_is(tmp_path):
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "beside.py").write_text("class BadData(Exception): pass\n")
    (tmp_path / "train.py").write_text(HANDED_BACK)
    done = run(str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr
    changed, refused, changed_too, unknown, _ = done.stdout.splitlines()
    assert changed == changed_too == "[1.0, 1.0] [1.0, 1.0, 1.0] 8.0"
    assert refused.startswith("LaunchError ddp_patch.launch(train): what it returned, generator, cannot be handed to")
    assert unknown.startswith("LaunchError a rank raised what this process cannot import (No module named 'beside'):")
    assert "BadData: row 7" in unknown


CHANGED = """
import logging, sys
import torch
from torch import nn
from torch.utils.data import DataLoader
import ddp_patch

class Head(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2

def finetune(net, optimizer, extra):
    net[0].requires_grad_(False)
    net[1] = Head(4, 4)
    net[1].weight.data.fill_(0.5)
    net.add_module("tied", net[0])
    net.register_parameter("scale", nn.Parameter(torch.ones(3) * 7))
    net.register_buffer("count", torch.tensor(4))
    del net.old
    optimizer.add_param_group({"params": [extra, net.scale], "lr": 0.5})
    (extra * 2 + net.scale.sum()).sum().backward()
    optimizer.step()
    return 1

def tie(lm):
    lm.head.weight = lm.embed.weight
    lm.extra = nn.Parameter(torch.zeros(2))

def train(net, optimizer):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    for x, in DataLoader(torch.utils.data.TensorDataset(torch.arange(32.0).view(8, 4) / 32), 4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    report = str(ddp_patch.report()) if ddp_patch.world_size() > 1 else "the outermost module whose parameters are optimized"
    return "the outermost module whose parameters are optimized" in report

def materialize(lazy):
    lazy(torch.ones(2, 3))
    lazy[0].weight.data.fill_(3.0)

class Data:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return float(index)

def spawns():
    loader = DataLoader(Data(), 4, num_workers=1, multiprocessing_context="spawn")
    return [batch.sum().item() for batch in loader]

def logs():
    logging.getLogger("train").info("epoch %d", 0)
    logging.getLogger("quiet").info("nothing")
    import lib
    lib.log.warning("hi")

class Starred(logging.Formatter):
    def format(self, record):
        record.star = "*"
        return super().format(record)

def all_of_it(call):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 9))
    net.register_buffer("old", torch.ones(1))
    extra = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    print(call(finetune, net, optimizer, extra))
    print(net(torch.ones(1, 4)).tolist(), [p.requires_grad for p in net.parameters()], isinstance(net[1], Head))
    print(net.scale.tolist(), net.count.item(), [*net._modules], net.tied is net[0], hasattr(net, "old"))
    groups = optimizer.param_groups
    print([group["lr"] for group in groups], groups[1]["params"][0] is extra, groups[0]["params"][0] is net[0].weight)
    print(extra.tolist(), len(optimizer.state), sum(p.numel() for p in net.parameters()))
    print(groups[1]["params"][1] is net.scale)
    lm = nn.Module()
    lm.embed, lm.head = nn.Embedding(5, 3), nn.Linear(3, 5)
    call(tie, lm)
    print(lm.head.weight is lm.embed.weight, isinstance(lm.extra, nn.Parameter), len(list(lm.parameters())))
    for given in (False, True):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 9))
        print(call(train, net, torch.optim.SGD(net.parameters(), 0.1) if given else None))
        print([round(p.sum().item(), 5) for p in net.parameters()], type(net[0]))
    lazy = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    call(materialize, lazy)
    print(lazy, lazy[0].weight.tolist(), lazy[1].running_mean.shape, len(lazy[0]._forward_pre_hooks))
    print(lazy(torch.ones(2, 3)).shape)
    print(call(spawns))
    logging.info("before")
    call(logs)
    logging.getLogger("train").info("after")

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="{name}: {message}", style="{")
    logging.getLogger("train").addHandler(logging.FileHandler("train.log", mode="w"))
    logging.getLogger("quiet").setLevel(logging.WARNING)
    import lib
    lib.log.propagate = False
    lib.log.handlers[0].setFormatter(Starred("%(star)s %(message)s"))
    lib.log.addHandler(odd := logging.StreamHandler(sys.stdout))
    odd.setFormatter(type("Odd", (), {"format": lambda self, record: record.getMessage()})())
    lib.log.removeHandler(odd)
    if sys.argv[1] == "plain":
        all_of_it(lambda function, *args: function(*args))
    else:
        all_of_it(lambda function, *args: ddp_patch.launch(function, *args, nproc=2))
"""


@pytest.mark.long
def test_layers_groups_and_sizes_come_back_and_the_ranks_log_and_spawn_as_a_plain_call_does(tmp_path):
    said = {}
    for how in ("plain", "launched"):
        (tmp_path / how).mkdir()
        (tmp_path / how / "train.py").write_text(CHANGED)
        (tmp_path / how / "lib.py").write_text(
            "import logging, sys\nlog = logging.getLogger('lib')\nlog.addHandler(logging.StreamHandler(sys.stdout))\n"
        )
        done = run(str(tmp_path / how / "train.py"), how, cwd=tmp_path / how)
        assert done.returncode == 0, done.stderr
        said[how] = done.stdout, (tmp_path / how / "train.log").read_text()
    assert said["launched"] == said["plain"]
    assert said["plain"][0].endswith("root: before\ntrain: epoch 0\n* hi\ntrain: after\n")
    assert said["plain"][1] == "epoch 0\nafter\n"


AGAIN = """
import random, sys
import numpy as np
import torch
import torch.nn.utils.prune
from random import random as draw
from torch import nn
import ddp_patch

SCALE = 1.0

class Net(nn.Module):
    trained = 0

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.seen, self.config = [], {"width": 2}

    def forward(self, x):
        return self.inner(x) * SCALE

class Stop(Exception):
    pass

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()

def double(module, args, output):
    return output * 2

def train(model, optimizer):
    if not model.seen:
        model.handle = model.inner.register_forward_hook(double)
        nn.utils.prune.random_unstructured(model.inner, "bias", 1)
    for _ in range(2):
        step(model, optimizer)
    model.seen.append(len(model.seen))
    model.best = 0.5
    model.head = nn.Linear(1, 1)
    Net.trained += 1
    return {"model": model, "head": model.head, "step": step, "kind": Net, "seen": model.seen}

def stop(model, optimizer):
    step(model, optimizer)
    raise Stop(model)

x = torch.zeros(4)
head = x[:2]
wide = x[:1].expand(3)

rngs = [np.random.default_rng(0), np.random.RandomState(1), random.Random(2), torch.Generator().manual_seed(3)]

def draws(scaler):
    head.add_(1.0)
    rng, legacy, pythons, torchs = rngs
    scaler.scale(torch.ones(1))
    scaler.update(scaler.get_scale() * 4)
    return x.sum().item(), wide.sum().item(), [rng.random(), legacy.rand(), pythons.random(), torch.rand(1, generator=torchs).item(), draw(), np.random.rand()]

def main(call):
    global SCALE
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    model = Net()
    model.inner.register_forward_hook(double)
    config = model.config
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        given = call(train, model, optimizer)
        print(given["model"] is model, given["head"] is model.head, given["step"] is step, given["kind"] is Net)
        print(given["seen"] is model.seen, model.config is config, model.seen, model.best, Net.trained)
        print(round(model.inner.weight.sum().item(), 5), [*dict(model.named_parameters())])
        model = given["model"]
    try:
        call(stop, model, optimizer)
    except Stop as error:
        print(error.args[0] is model, round(model.inner.weight.sum().item(), 5))
    SCALE = 2.0
    print(bool((model(torch.ones(1, 2)) == 2 * model.inner(torch.ones(1, 2))).all()))
    model.inner.register_forward_hook(double)
    print(model.inner(torch.ones(1, 2)).item(), len(model.inner._forward_hooks))
    model.handle.remove()
    print(model.inner(torch.ones(1, 2)).item(), len(model.inner._forward_hooks))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    print(call(draws, scaler), call(draws, scaler), draws(scaler), scaler.get_scale())
    x[0] = 9.0
    print(x.tolist(), head.tolist(), wide.tolist())

if sys.argv[1] == "plain":
    main(lambda function, *args: function(*args))
else:
    main(lambda function, *args: ddp_patch.launch(function, *args, nproc=2))
"""


@pytest.mark.long
def test_what_comes_back_is_the_callers_own_and_goes_on_where_it_was(tmp_path):
    (tmp_path / "train.py").write_text(AGAIN)
    said = {how: run(str(tmp_path / "train.py"), how) for how in ("plain", "launched")}
    assert said["plain"].returncode == said["launched"].returncode == 0, said["launched"].stderr
    assert said["launched"].stdout == said["plain"].stdout
    assert said["plain"].stdout.startswith("True True True True\nTrue True [0] 0.5 1\n")


def test_views_travel_with_their_memory_once():
    import torch

    from ddp_patch.remote import parcel

    series = torch.arange(20_000.0)
    windows = [series[at : at + 24] for at in range(10_000)]
    packed, _ = parcel.pack(print, (windows,), {})
    assert len(packed) < 2_000_000
    _, ((first, *_, last),), _, _ = parcel.unpack(packed)
    first[0] = -1.0
    assert (first.tolist(), last.tolist()) == ([-1.0, *range(1, 24)], [*range(9_999, 10_023)])
    assert first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()


QUIETLY = """
import sys, warnings
import torch
from torch import nn
import ddp_patch

class Shy(UserWarning):
    pass

warnings.filterwarnings("ignore", message="noisy")
warnings.filterwarnings("ignore", category=Shy, module="__main__")

@ddp_patch.enable
def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()

def epoch(model, optimizer, scheduler):
    with ddp_patch.enable():
        step(model, optimizer)
    if scheduler is not None:
        scheduler.step()
    warnings.warn("noisy rows")
    warnings.warn("of mine", Shy)
    warnings.warn("said")

def apart(model):
    with torch.no_grad():
        model.weight.fill_(7.0)
    with ddp_patch.per_rank():
        if ddp_patch.rank() == ddp_patch.world_size() - 1:
            raise RuntimeError("of the last rank")
    torch.save(model, "model.pt")

def main(call):
    for goes_along in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        call(epoch, model, optimizer, scheduler if goes_along else None)
        scheduler.step()
        print(scheduler.get_last_lr(), round(model.weight.sum().item(), 5))

if sys.argv[1] == "plain":
    main(lambda function, *args: function(*args))
else:
    main(lambda function, *args: ddp_patch.launch(function, *args, nproc=2))
    model = nn.Linear(2, 1)
    try:
        ddp_patch.launch(apart, model, nproc=2)
    except RuntimeError as error:
        print(error, (model.weight == 7.0).any().item())
"""


@pytest.mark.long
def test_ranks_warn_of_what_one_process_does_and_go_apart_without_waiting(tmp_path):
    (tmp_path / "train.py").write_text(QUIETLY)
    said = {how: run(str(tmp_path / "train.py"), how, cwd=tmp_path) for how in ("plain", "launched")}
    assert said["plain"].stdout.startswith("[0.025] "), said["plain"].stderr
    assert said["launched"].stdout == said["plain"].stdout + "of the last rank False\n", said["launched"].stderr
    warned = [line for line in said["launched"].stderr.splitlines() if "Warning" in line]
    assert warned == [line for line in said["plain"].stderr.splitlines() if "Warning" in line] * 2
    assert len(warned) == 2


FILTERED = """
import os, sys, warnings
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "aside"))
import ddp_patch
from beside import Loud

class Shy(UserWarning): pass

def warn(kind):
    warnings.warn("a", kind)
    warnings.warn("b", Shy)
    warnings.warn("c", Loud)
    return "went on"

warnings.simplefilter("ignore", Shy)
warnings.simplefilter("error", Loud)
for kind in (Shy, Loud):
    try:
        print(ddp_patch.launch(warn, kind, nproc=2))
    except Loud as error:
        print("Loud", str(error))
"""


@pytest.mark.long
def test_warnings_of_ones_own_are_filtered_there_too(tmp_path):
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "beside.py").write_text("class Loud(UserWarning): pass\n")
    (tmp_path / "train.py").write_text(FILTERED)
    done = run(str(tmp_path / "train.py"))
    assert (done.returncode, done.stdout) == (0, "Loud c\nLoud a\n"), done.stderr


def test_under_a_launcher_the_ranks_are_there_already(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace(", nproc=2", "").replace('print("once")', ""))
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "train.py"))
    # Outside of the call both ranks print, whichever comes first.
    assert (done.returncode, sorted(done.stdout)) == (0, sorted("2\n2\n")), done.stderr


def test_a_decorator_is_told_from_a_call(tmp_path):
    (tmp_path / "told.py").write_text(
        "import sys\nfrom ddp_patch.job.program import decorates\ntold = []\n"
        "def enable(**_):\n    told.append(decorates(sys._getframe(1)))\n    return lambda function: function\n"
        "enable(nproc=2)\n@enable(nproc=2)\ndef one():\n    enable()\n@enable(\n    nproc=2\n)\ndef two(): ...\none()\nprint(told)\n"
    )
    assert run(str(tmp_path / "told.py")).stdout == "[False, True, True, False]\n"
    assert not program.is_typed()


@pytest.mark.long
def test_a_script_with_a_shell_of_its_own_starts_its_ranks(tmp_path):
    (tmp_path / "train.py").write_text(
        "from IPython.terminal.embed import InteractiveShellEmbed\nInteractiveShellEmbed.instance()\n"
        "import ddp_patch; ddp_patch.enable(nproc=2); print(ddp_patch.world_size())\n"
    )
    done = run(str(tmp_path / "train.py"), IPYTHONDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.long
def test_ipythons_prompt_launches_functions_and_is_not_started_again(tmp_path):
    typed = (
        "import ddp_patch\ndef sizes(): return ddp_patch.world_size()\n\nprint('sizes', ddp_patch.launch(sizes, nproc=2))\n"
        "ddp_patch.enable(nproc=2)\n"
    )
    done = run("-m", "IPython", "--no-banner", "--colors=NoColor", stdin=typed, IPYTHONDIR=str(tmp_path))
    assert "sizes 2" in done.stdout, done.stderr
    assert "LaunchError: This program was typed at a prompt" in done.stdout + done.stderr


def test_tensors_on_an_accelerator_of_the_caller_are_named(monkeypatch):
    """A device of another name stands for one: meta, which the host otherwise has."""
    import torch

    import ddp_patch
    from ddp_patch.remote import picklers

    monkeypatch.setattr(picklers, "_HOST", ("cpu",))
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(
        ddp_patch.OrderError, match=r"launch\(print\): argument 2 holds tensors on meta of this process"
    ):
        ddp_patch.launch(print, 1, model, nproc=2)


def test_an_argument_that_does_not_pickle_is_named():
    import ddp_patch

    with pytest.raises(ddp_patch.LaunchError, match="argument 'key' cannot be handed to other processes"):
        ddp_patch.launch(print, nproc=2, key=(line for line in ()))
