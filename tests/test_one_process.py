"""While a session runs, whoever asks how many processes there are is told: one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ddp_patch
from ddp_patch.job import conditions
from ddp_patch.job.ranks_noted_at_import import NotedRanks
from ddp_patch.patches.already_distributed import asks_for_several

LAUNCHED = {
    **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"},
    **{"GROUP_RANK": "0", "ROLE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}


def write(tmp_path, source):
    path = tmp_path / "script.py"
    path.write_text(source)
    return path


def both_ways(ranks, path, sizes=(2, 3)):
    """Run a script alone and on ranks, and compare what it prints and writes."""
    alone = ranks.script(path, 1).ok()
    for nproc in sizes:
        outcome = ranks.script(path, nproc).ok()
        assert outcome.stdout == [alone.stdout[0]] + [""] * (nproc - 1)
        assert outcome.files() == alone.files()
        for name in alone.files():
            here, there = outcome.cwd / name, alone.cwd / name
            if name.endswith((".pt", ".pth")):
                torch.testing.assert_close(torch.load(here), torch.load(there), rtol=1e-9, atol=1e-12)
            else:
                assert here.read_bytes() == there.read_bytes(), name
    return alone


TRAINING = """
import os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
data = TensorDataset(torch.randn(22, 4), torch.randint(0, 3, (22,)))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
def train(model, loader, says=print):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        correct = 0
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            correct += (out.argmax(1) == y).sum().item()
        says(epoch, f"{loss.item():.9f}", correct / len(loader.dataset))
"""

NANO_GPT = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
ddp = int(os.environ.get('RANK', -1)) != -1  # is this a ddp run?
if ddp:
    dist.init_process_group(backend="gloo")
    ddp_rank = int(os.environ['RANK'])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
else:
    master_process = True
    seed_offset = 0
    ddp_world_size = 1
torch.manual_seed(1337 + seed_offset)
if ddp:
    model = DDP(model)
train(model, DataLoader(data, 8, shuffle=True))
if master_process:
    torch.save(model.state_dict(), "ckpt.pt")
if ddp:
    dist.destroy_process_group()
"""

ARGUMENT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
args = parser.parse_args()
if args.local_rank != -1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
train(model, DataLoader(data, 8))
if args.local_rank in (-1, 0):
    print("saved"); torch.save(model.state_dict(), "net.pt")
"""

# The module that torchvision's references, DeiT, MAE and many others copy, written anew after its interface.
HELPERS = """
import torch.distributed as dist
from collections import defaultdict, deque
def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()
def get_world_size():
    return dist.get_world_size() if is_dist_avail_and_initialized() else 1
def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0
def is_main_process():
    return get_rank() == 0
def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)
def setup_for_distributed(is_master):
    import builtins
    real = builtins.print
    def say(*args, force=False, **kwargs):
        if is_master or force:
            real(*args, **kwargs)
    builtins.print = say
def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        args.rank = int(os.environ["SLURM_PROCID"])
    else:
        print("Not using distributed mode")
        args.distributed = False
        return
    args.distributed = True
    dist.init_process_group("gloo", world_size=args.world_size, rank=args.rank)
    dist.barrier()
    setup_for_distributed(args.rank == 0)
def reduce_dict(values):
    if get_world_size() < 2:
        return values
    raise AssertionError
class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0
    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n
    def synchronize_between_processes(self):
        if not is_dist_avail_and_initialized():
            return
        t = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(t)
        self.count, self.total = int(t[0]), t[1].item()
    def __str__(self):
        median = torch.tensor(list(self.deque)).median().item()
        return f"{median:.9f} ({self.total / self.count:.9f})"
class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)
    def update(self, n, **values):
        for name, value in values.items():
            self.meters[name].update(value.item() if isinstance(value, torch.Tensor) else value, n)
    def synchronize_between_processes(self):
        for meter in self.meters.values():
            meter.synchronize_between_processes()
    def __str__(self):
        return "  ".join(f"{name}: {meter}" for name, meter in self.meters.items())
    def log_every(self, iterable, freq, header):
        for index, item in enumerate(iterable):
            yield item
            if index % freq == 0:
                print(f"{header} [{index}/{len(iterable)}] {self}")
class args:
    pass
init_distributed_mode(args)
if args.distributed:
    sampler = torch.utils.data.DistributedSampler(data)
    model = nn.parallel.DistributedDataParallel(model)
else:
    sampler = torch.utils.data.RandomSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    logger = MetricLogger()
    for x, y in logger.log_every(loader, 2, f"Epoch [{epoch}]"):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses = reduce_dict({"loss": loss})
        logger.update(len(x), loss=losses["loss"], acc=(out.argmax(1) == y).double().mean())
    logger.synchronize_between_processes()
    print("Averaged stats:", logger)
    save_on_master({"model": model.state_dict(), "epoch": epoch}, f"checkpoint{epoch}.pth")
    if is_main_process():
        with open("log.txt", "a") as f:
            f.write(f"{epoch} {logger}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("branches", [NANO_GPT, ARGUMENT, HELPERS], ids=["nanoGPT", "local_rank", "copied helpers"])
def test_a_script_with_a_branch_of_its_own_takes_that_of_one_process(ranks, tmp_path, branches):
    alone = both_ways(ranks, write(tmp_path, TRAINING + branches), (2, 3, 4))
    assert alone.files()


LAUNCHERS = {
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node=2"],
    "accelerate launch": ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no"],
    "python": ["python"],
}


@pytest.mark.slow
@pytest.mark.some("torchrun")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_gives_one_process(ranks, tmp_path, launcher):
    alone = ranks.script(write(tmp_path, TRAINING + HELPERS), 1).ok()
    script = write(tmp_path, "import ddp_patch; ddp_patch.enable()\n" + TRAINING + HELPERS)
    command = [str(Path(sys.executable).parent / LAUNCHERS[launcher][0]), *LAUNCHERS[launcher][1:], str(script)]
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ddp_patch.__file__).parent.parent)}
    if launcher == "python":
        env["DDP_PATCH_NPROC"] = "2"
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout[0]
    assert (tmp_path / "log.txt").read_text() == (alone.cwd / "log.txt").read_text()


# --- who looks, and where -----------------------------------------------------------------------------------------

EARLY = """
import json, multiprocessing, os, subprocess, sys, threading
import torch, torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState
from torch.distributed import get_rank, is_initialized
from torch.utils.data import DataLoader, Dataset
"""

LOOKS = """
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
         "TORCHELASTIC_USE_AGENT_STORE", "GROUP_RANK", "ROLE_RANK", "SLURM_PROCID")
def look(*_):
    return [
        [name for name in NAMES if name in os.environ], [n for n in NAMES if os.getenv(n)], dist.is_initialized(),
        is_initialized(), dist.group.WORLD is None, PartialState._shared_state == {}, AcceleratorState._shared_state == {},
        dist.is_torchelastic_launched(),
    ]
class Looks(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return json.dumps(look())
def as_text(items):
    return items
def everywhere():
    seen = {"here": look()}
    thread = threading.Thread(target=lambda: seen.update(thread=look()))
    thread.start(); thread.join()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        seen["forked"] = pool.map(look, [0])[0]
    for workers in (0, 2):
        seen[f"dataset, {workers} workers"] = next(iter(DataLoader(Looks(), 4, num_workers=workers)))
        seen[f"collated, {workers} workers"] = next(iter(DataLoader(Looks(), 4, num_workers=workers, collate_fn=as_text)))
    there = "import os; print(sorted(n for n in os.environ if 'RANK' in n or 'WORLD_SIZE' in n or 'MASTER' in n))"
    seen["command"] = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True).stdout
    try:
        get_rank()
    except ValueError as error:
        seen["get_rank"] = str(error)
    return seen
"""


@pytest.mark.slow
def test_nobody_finds_the_ranks(ranks, tmp_path):
    both_ways(ranks, write(tmp_path, EARLY + LOOKS + "print(json.dumps(everywhere(), indent=1))"))


@pytest.mark.long
def test_a_spawned_child_finds_one_process(ranks, tmp_path):
    source = (
        EARLY
        + LOOKS
        + """
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(json.dumps(pool.map(look, [0])[0]))
"""
    )
    script = write(tmp_path, "import ddp_patch; ddp_patch.enable()\n" + source)
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ddp_patch.__file__).parent.parent)}
    said = [
        subprocess.run(
            [sys.executable, script],
            cwd=tmp_path,
            env=env | more,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout
        for more in ({"DDP_PATCH_NPROC": "1"}, {"DDP_PATCH_NPROC": "2"})
    ]
    assert said[0] == said[1]
    assert said[0].count("[]") == 2


def put_away_and_back():
    import torch.distributed as dist
    from accelerate.state import AcceleratorState, PartialState

    ddp_patch.disable()
    before = dict(os.environ)
    states = [dist.is_initialized(), dict(PartialState._shared_state), dict(AcceleratorState._shared_state)]
    ddp_patch.enable()
    during = dict(os.environ)
    os.environ["MINE"] = "1"
    PartialState(cpu=True)
    ddp_patch.disable()
    after = dict(os.environ)
    assert after.pop("MINE") == "1"
    assert after == before
    assert [dist.is_initialized(), dict(PartialState._shared_state), dict(AcceleratorState._shared_state)] == states
    ddp_patch.enable()
    assert {name: value for name, value in os.environ.items() if name != "MINE"} == during
    return sorted(before.keys() - during.keys()), states


@pytest.mark.slow
def test_disable_puts_back_what_the_launcher_left(ranks):
    for hidden, states in ranks.call(put_away_and_back, 2).ok().results:
        assert {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} <= set(hidden)
        assert states == [False, {}, {}]


def group_of_ones_own_after_disable():
    import torch.distributed as dist

    total = (torch.ones(4) * 2).sum()
    ddp_patch.disable()
    dist.init_process_group("gloo")
    count = torch.ones(1)
    dist.all_reduce(count)
    own = dist.get_rank()
    dist.destroy_process_group()
    return [total.item(), count.item(), own]


@pytest.mark.slow
def test_after_disable_the_ranks_can_form_a_group_of_their_own(ranks):
    outcome = ranks.call(group_of_ones_own_after_disable, 2).ok()
    assert outcome.results == [[8, 2, 0], [8, 2, 1]]
    assert outcome.stderr == ["", ""]  # nor when the job's own group, which went with that, is to be destroyed


# --- variables that a script sets or needs ------------------------------------------------------------------------

NEEDS = {
    "an index": 'rank = int(os.environ["RANK"])',
    "int of get": 'rank = int(os.environ.get("RANK"))',
    "int of getenv": 'rank = int(os.getenv("RANK"))',
    "a handler that raises": """
try:
    rank = int(os.environ["RANK"])
except Exception:
    print("no rank")
    raise
""",
    "a program that reports": """
def setup():
    return int(os.environ["RANK"])
def main():
    global rank
    rank = setup()
try:
    main()
except Exception as error:
    sys.exit(str(error))
""",
}
DOES_WITHOUT = {
    "get": 'rank = int(os.environ.get("RANK", 0))',
    "getenv": 'rank = int(os.getenv("RANK") or 0)',
    "in": 'rank = int(os.environ["RANK"]) if "RANK" in os.environ else 0',
    "KeyError": """
try:
    rank = int(os.environ["RANK"])
except KeyError:
    rank = 0
""",
    "everything": """
try:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
except:
    rank = 0
""",
    "an outer handler": """
def setup():
    return int(os.environ["RANK"])
def both():
    with open(os.devnull):
        return setup()
try:
    rank = both()
except (ImportError, LookupError):
    rank = 0
""",
    "suppress": """
rank = 0
with contextlib.suppress(KeyError):
    rank = int(os.environ["RANK"])
""",
    "setdefault": 'rank = int(os.environ.setdefault("RANK", "0")); del os.environ["RANK"]',
    "pop": 'rank = int(os.environ.pop("RANK", 0))',
    "a copy": 'rank = int(dict(os.environ).get("RANK", 0))',
}
VARIABLE = """
import contextlib, os, sys
import ddp_patch
ddp_patch.enable()
{read}
sys.stdout.write(f"{{rank}} {{ddp_patch.is_enabled()}} {{sorted(n for n in os.environ if n in ('RANK', 'WORLD_SIZE'))}}\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("read", NEEDS)
def test_a_script_that_needs_its_rank_finds_it_and_is_left_alone(ranks, tmp_path, read):
    path = write(tmp_path, VARIABLE.format(read=NEEDS[read]))
    outcome = ranks.script(path, 2).ok()
    assert outcome.stdout == [f"{rank} True ['RANK', 'WORLD_SIZE']\n" for rank in range(2)]
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if '"RANK"' in text)
    said = f"script.py:{line}: the script needs os.environ['RANK'], so it distributes itself: ddp_patch stands aside.\n"
    assert "".join(outcome.stderr) == said


@pytest.mark.slow
@pytest.mark.parametrize("read", DOES_WITHOUT)
def test_a_script_that_does_without_a_rank_is_one_process(ranks, tmp_path, read):
    outcome = ranks.script(write(tmp_path, VARIABLE.format(read=DOES_WITHOUT[read])), 2).ok()
    assert outcome.stdout == ["0 True []\n", ""]
    assert "".join(outcome.stderr) == ""


@pytest.mark.slow
def test_a_default_gives_way_to_the_launchers_value_and_what_a_script_sets_stays(ranks, tmp_path):
    source = """
import os, sys, ddp_patch
ddp_patch.enable()
os.environ.setdefault("MASTER_ADDR", "nowhere.invalid")
if "WORLD_SIZE" not in os.environ:
    os.environ["WORLD_SIZE"] = "1"
os.environ["LOCAL_RANK"] = "7"
rank = os.environ["RANK"]
sys.stdout.write(" ".join([rank, *(os.environ[name] for name in ("MASTER_ADDR", "WORLD_SIZE", "LOCAL_RANK"))]) + "\\n")
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stdout == ["0 127.0.0.1 2 7\n", "1 127.0.0.1 2 7\n"]


def test_other_missing_variables_are_errors_as_ever(ranks, tmp_path):
    outcome = ranks.script(write(tmp_path, 'import os\nos.environ["NOT_THERE"]'), 2)
    assert all(outcome.codes)
    assert "".join(outcome.stderr).count("KeyError: 'NOT_THERE'") == 1


def frame_of(source):
    namespace = {"sys": sys}
    path = Path(namespace.setdefault("path", "")) / "never.py"
    code = compile(source, str(path), "exec")
    import linecache

    linecache.cache[str(path)] = (len(source), None, source.splitlines(True), str(path))
    exec(code, namespace)
    return namespace["frame"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("frame = sys._getframe()", False),
        ("try:\n    frame = sys._getframe()\nexcept KeyError:\n    pass", True),
        ("try:\n    frame = sys._getframe()\nexcept ValueError:\n    pass", False),
        ("try:\n    pass\nexcept KeyError:\n    pass\nelse:\n    frame = sys._getframe()", False),
        ("try:\n    frame = sys._getframe()\nfinally:\n    pass", False),
        ("MINE = (KeyError,)\ntry:\n    frame = sys._getframe()\nexcept (TypeError, LookupError):\n    pass", True),
        ("try:\n    def f():\n        return sys._getframe()\nexcept KeyError:\n    pass\nframe = f()", False),
        ("def f():\n    try:\n        return sys._getframe()\n    except:\n        return 0\nframe = f()", True),
        (
            "class A:\n    try:\n        frame = sys._getframe()\n    except KeyError:\n        pass\nframe = A.frame",
            True,
        ),
    ],
)
def test_what_a_program_expects_is_read_from_its_source(source, expected):
    assert conditions.is_expected(KeyError, frame_of(source)) is expected


# --- doors ----------------------------------------------------------------------------------------------------------

DOORS = {
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))",
    "FSDP": "from torch.distributed.fsdp import FullyShardedDataParallel as F\nF(torch.nn.Linear(1, 1))",
    "torch.distributed.init_device_mesh": "dist.init_device_mesh('cpu', (2,))",
    "torch.distributed.DeviceMesh": "from torch.distributed.device_mesh import DeviceMesh\nDeviceMesh('cpu', [0, 1])",
    "torch.distributed.init_process_group": "early('gloo')",
    "accelerate.Accelerator": "from accelerate import Accelerator\nAccelerator(cpu=True)",
    "torch.distributed.rpc.init_rpc": (
        "from torch.distributed import rpc\nrpc.init_rpc(f'w{ddp_patch.rank()}')\nrpc.shutdown()"
    ),
}
AT_THE_DOOR = """
import os, sys, ddp_patch, torch, torch.distributed as dist
from torch.distributed import init_process_group as early
ddp_patch.disable()
before = vars(torch.utils.data.DataLoader)["__iter__"], vars(torch.nn.Module)["__call__"], os.environ.__class__.__getitem__
ddp_patch.enable()
try:
    DOOR
except (ValueError, RuntimeError) as error:
    sys.stdout.write(f"{error}\\n")
now = vars(torch.utils.data.DataLoader)["__iter__"], vars(torch.nn.Module)["__call__"], os.environ.__class__.__getitem__
sys.stdout.write(f"{before == now} {os.environ['RANK']} {os.environ['WORLD_SIZE']} {dist.is_initialized()}")
if dist.is_initialized():
    count = torch.ones(1)
    dist.all_reduce(count)
    sys.stdout.write(f" {count.item():.0f} {dist.get_rank()}")
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_what_only_distributes_is_left_alone_at_its_door(ranks, tmp_path, door):
    source = AT_THE_DOOR.replace("DOOR", DOORS[door].replace("\n", "\n    "))
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for rank, said in enumerate(outcome.stdout):
        if said.startswith(("Default process group has not been initialized", "FSDP needs a non-CPU")):
            assert said.endswith(f"True {rank} 2 False")  # torch's own word, as without the line
        else:
            assert said == f"True {rank} 2 True 2 {rank}" or door.endswith("rpc"), said
    assert "".join(outcome.stderr).count(f"the script calls {door}, so it distributes itself") == 1, outcome.said()
    assert "".join(outcome.stderr).count("ddp_patch") == 1


@pytest.mark.parametrize("given", ["rank=0, world_size=1", "None, 1, 0"])
def test_a_group_of_fewer_than_the_ranks_is_an_error(ranks, tmp_path, given):
    """As scripts make by hand that have arguments for it; each rank would wait for its own."""
    call = f'dist.init_process_group("gloo", "tcp://127.0.0.1:29787", {given})'
    source = f"import torch.distributed as dist\nimport ddp_patch\nddp_patch.enable()\n{call}\nprint('went on')\n"
    outcome = ranks.script(write(tmp_path, source), 2)
    assert all(outcome.codes)
    assert not outcome.late
    said = "".join(outcome.stderr)
    assert "script.py:4: the script makes a process group of one process, and 2 ranks run it. Leave" in said, said
    assert "went on" not in "".join(outcome.stdout)


def test_a_group_made_behind_our_back_is_an_error(ranks, tmp_path):
    source = """
import os, torch.distributed as dist
import ddp_patch
ddp_patch.disable()
makes = {"gloo": dist.init_process_group}  # no name of a module
ddp_patch.enable()
import torch
from torch.utils.data import DataLoader, TensorDataset
makes["gloo"]("gloo", store=dist.HashStore(), rank=0, world_size=1)
for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), 4):
    print("went on")
"""
    outcome = ranks.script(write(tmp_path, source), 2)
    assert all(outcome.codes)
    assert not outcome.late
    said = "".join(outcome.stderr)
    assert said.count("OrderError") >= 1, said
    assert "a process group (gloo, 1 rank) was made" in said
    assert "went on" not in "".join(outcome.stdout)


@pytest.mark.parametrize(
    ("arguments", "several"),
    [
        ({}, False),
        ({"devices": 1}, False),
        ({"devices": "1", "strategy": "auto"}, False),
        ({"accelerator": "cpu", "devices": "auto"}, False),
        ({"devices": [0]}, False),
        ({"devices": 2}, True),
        ({"devices": "2"}, True),
        ({"devices": "0,1"}, True),
        ({"devices": [0, 1]}, True),
        ({"devices": 1, "num_nodes": 2}, True),
        ({"strategy": "ddp"}, True),
    ],
)
def test_lightning_is_asked_for_several_devices(arguments, several):
    assert asks_for_several(**arguments) is several


# --- ranks that modules noted before --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_library_that_noted_its_rank_above_the_line_is_mended(ranks, tmp_path):
    (tmp_path / "lightning_utilities" / "core").mkdir(parents=True)
    (tmp_path / "lightning_utilities" / "__init__.py").write_text("")
    (tmp_path / "lightning_utilities" / "core" / "__init__.py").write_text("")
    (tmp_path / "lightning_utilities" / "core" / "rank_zero.py").write_text(
        "import os\ndef rank_zero_only(): ...\nrank_zero_only.rank = int(os.environ.get('RANK', 0))\n"
    )
    source = """
import sys
sys.path.insert(0, sys.argv[1])
from lightning_utilities.core.rank_zero import rank_zero_only
import ddp_patch
ddp_patch.disable()
ddp_patch.enable()
during = rank_zero_only.rank
ddp_patch.disable()
sys.stdout.write(f"{during} {rank_zero_only.rank}\\n")
"""
    outcome = ranks.script(write(tmp_path, source), 2, str(tmp_path)).ok()
    assert outcome.stdout == ["0 0\n", "0 1\n"]


@pytest.mark.slow
def test_a_rank_noted_by_an_unknown_module_names_the_line_to_move(ranks, tmp_path):
    (tmp_path / "settings.py").write_text("import os\nLOCAL_RANK = int(os.getenv('LOCAL_RANK', -1))\nRANK = 0\n")
    source = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport ddp_patch\nddp_patch.disable()\n{}\nddp_patch.enable()\n"
    )
    imported = ranks.script(write(tmp_path, source.format("import settings")), 2, str(tmp_path))
    said = "".join(imported.stderr)
    assert all(imported.codes)
    assert "settings was imported and has set LOCAL_RANK to 0, 1 on the ranks before ddp_patch.enable()" in said
    assert "Move the import of settings below ddp_patch.enable()." in said
    own = ranks.script(write(tmp_path, source.format("import os\nrank = int(os.environ['RANK'])")), 2, str(tmp_path))
    assert "script.py has set rank to 0, 1 on the ranks before ddp_patch.enable()" in "".join(own.stderr)
    assert all(own.codes)


@pytest.mark.slow
def test_a_rank_that_was_asked_of_ddp_patch_may_be_kept(ranks, tmp_path):
    source = """
import sys, ddp_patch
rank = ddp_patch.rank()
ddp_patch.disable()
ddp_patch.enable()
sys.stdout.write(f"{rank}")
ddp_patch.disable()
"""
    assert ranks.script(write(tmp_path, source), 2).ok().stdout == ["0", ""]


def test_constants_that_agree_on_all_ranks_are_no_ranks():
    NotedRanks.refuse([{"a.rank": 0}, {}])
    NotedRanks.refuse([{"a.rank": 1}, {"a.rank": 1}])
    with pytest.raises(ddp_patch.OrderError, match=r"a was imported and has set rank to 0, 1"):
        NotedRanks.refuse([{"a.rank": 0}, {"a.rank": 1}])


# --- what the author means per rank ---------------------------------------------------------------------------------


def for_itself():
    import sys

    print("once")
    with ddp_patch.per_rank():
        print("rank", ddp_patch.rank(), "of", ddp_patch.world_size(), ddp_patch.is_main())
        sys.stderr.write(f"heard {ddp_patch.rank()}\n")
        with open(f"own{ddp_patch.rank()}.txt", "w") as file:
            file.write(str(ddp_patch.rank()))
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    print("once more")
    return sorted(os.listdir("."))


@pytest.mark.slow
def test_what_is_meant_per_rank_has_a_door(ranks):
    outcome = ranks.call(for_itself, 3).ok()
    assert outcome.stdout[0].splitlines() == ["once", "rank 0 of 3 True", "child", "once more"]
    for rank in (1, 2):
        assert outcome.stdout[rank].splitlines() == [f"rank {rank} of 3 False", "child"]
    assert outcome.stderr == [f"heard {rank}\n" for rank in range(3)]
    assert outcome.results == [["own0.txt", "own1.txt", "own2.txt"]] * 3
    assert [(outcome.cwd / f"own{rank}.txt").read_text() for rank in range(3)] == ["0", "1", "2"]


def test_on_one_process_the_doors_per_rank_are_those_of_rank_0():
    assert (ddp_patch.rank(), ddp_patch.world_size(), ddp_patch.is_main()) == (0, 1, True)
    with ddp_patch.per_rank():
        pass


@pytest.mark.slow
def test_a_rank_is_known_after_standing_aside(ranks, tmp_path):
    source = """
import os, sys, ddp_patch
ddp_patch.enable()
os.environ["RANK"]
sys.stdout.write(f"{ddp_patch.rank()} {ddp_patch.world_size()}")
"""
    assert ranks.script(write(tmp_path, source), 2).ok().stdout == ["0 2", "1 2"]


def test_the_variables_of_half_a_launcher_are_refused(tmp_path):
    source = "import ddp_patch\nddp_patch.enable()\n"
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "PYTHONPATH": str(Path(ddp_patch.__file__).parent.parent)}
    for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, write(tmp_path, source)], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "LaunchError: RANK, WORLD_SIZE is set but MASTER_ADDR, MASTER_PORT is not" in done.stderr
