"""What a script says about itself, without being run."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddp_patch.source import Kind, Role, facts_of_text

ROOT = Path(__file__).parents[1]
HEAD = """
import torch
import torch.nn as nn
from torch import optim
from torch.utils.data import DataLoader as Loader, DistributedSampler
"""


def kinds(text, expression):
    facts = facts_of_text(f"{HEAD}{text}\nprobe({expression})\n")
    (call,) = facts.calls("probe")
    return {kind.name for kind in facts.kinds(call.args[0].value)}


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        ("x = 1", "x", set()),
        ("", "len(names)", set()),
        ("m = nn.Linear(1, 1)", "m", {"MODULE"}),
        ("m = nn.Linear(1, 1).cuda().eval()", "m", {"MODULE"}),
        ("m = nn.Parameter(torch.zeros(3))", "m", set()),
        ("m = nn.ParameterList()", "m", {"MODULE"}),
        ("class Net(nn.Module): pass\nm = Net()", "m", {"MODULE"}),
        ("class Base(nn.Module): pass\nclass Net(Base): pass\nm = Net()", "m", {"MODULE"}),
        ("class Net(Unknown):\n    def forward(self, x): pass\nm = Net()", "m", {"MODULE"}),
        ("def make():\n    return nn.Linear(1, 1)\nm = make()", "m", {"MODULE"}),
        ("def make():\n    return 1, nn.Linear(1, 1)\na, m = make()", "m", {"MODULE"}),
        ("def split(x, n):\n    return torch.split(x, n)\na, b = split(x, 2)", "a", set()),
        ("def load(p):\n    return torch.load(p)\na, b = load(p)", "a", {"CHECKPOINT"}),
        ("class E:\n    def step(self, a):\n        return self.env.step(a)\na, b = env.step(1)", "a", set()),
        ("def f(n):\n    return f(n - 1) if n else (1, nn.Linear(1, 1))\na, m = f(2)", "m", {"MODULE"}),
        ("m = build()\nopt = optim.SGD(m.parameters())", "m", {"MODULE"}),
        ("m = nn.DataParallel(net)", "m", {"MODULE", "DATA_PARALLEL"}),
        ("m = nn.DataParallel(net)", "m.module", {"MODULE"}),
        ("m = nn.parallel.DistributedDataParallel(net)", "m", {"MODULE", "DDP"}),
        ("m = torch.compile(nn.Linear(1, 1))", "m", {"MODULE"}),
        ("m, o = accelerator.prepare(nn.Linear(1, 1), optim.SGD(p))", "o", {"OPTIMIZER"}),
        ("o = optim.SGD(p)", "o", {"OPTIMIZER"}),
        ("s = optim.lr_scheduler.StepLR(o, 1)", "s", {"SCHEDULER"}),
        ("c = nn.CrossEntropyLoss()", "c", {"LOSS", "MODULE"}),
        ("c = nn.CrossEntropyLoss()", "c(x, y)", {"LOSS_VALUE"}),
        ("l = Loader(d)", "l", {"LOADER"}),
        ("l = {n: Loader(d) for n in names}", "l['train']", {"LOADER"}),
        ("l = Loader(d)\nfor i, (x, y) in enumerate(l): pass", "y", {"BATCH"}),
        ("l = Loader(d)\nfor i, (x, y) in enumerate(l): pass", "i", set()),
        ("l = iter(Loader(d))\nx = next(l)", "x.cuda()", {"BATCH"}),
        ("for x in Loader(d):\n    n = x.size(0)", "n", {"LOCAL"}),
        ("for x in Loader(d):\n    n = x.size(1)", "n", set()),
        ("s = DistributedSampler(d)", "s", {"SAMPLER", "DISTRIBUTED_SAMPLER"}),
        ("def f(l):\n    pass\nf(Loader(d))", "1", set()),
        ("import os\nr = int(os.environ['LOCAL_RANK'])", "r", {"RANK"}),
        ("import os\nr = os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK', '0')", "int(r)", {"RANK"}),
        ("import os\nr = os.getenv('SLURM_PROCID')", "r", {"RANK"}),
        ("r = config.get('RANKING', 'RANK')", "r", set()),
        ("import torch.distributed as dist\nr = dist.get_rank()", "r", {"RANK"}),
        ("import torch.distributed as dist\nr = 8 * node + dist.get_rank()", "r", {"RANK"}),
        ("import torch.distributed as dist\nr = [dist.get_rank() == 0]", "r[0]", set()),
        ("for x in Loader(d):\n    n = x.sum()\nall_reduce(n)", "n", {"REDUCED"}),
        ("c = torch.load('x')", "c['state_dict']", {"CHECKPOINT", "STATE_DICT"}),
    ],
)
def test_kinds_of_expressions(text, expression, expected):
    assert kinds(text, expression) == expected


SPAWNED = [
    "import torch.multiprocessing as mp\nmp.spawn(work, nprocs=4, args=(args,))",
    "from torch.multiprocessing import spawn\nspawn(nprocs=4, fn=work, args=(args,))",
    "import torch\ntorch.multiprocessing.start_processes(work, (args,), 4, start_method='fork')",
]


@pytest.mark.parametrize("start", SPAWNED)
@pytest.mark.parametrize("used", ["gpu", "args.gpu", "args.device_id"])
def test_the_first_parameter_of_what_is_spawned_is_a_rank(start, used):
    work = "def work(gpu, args):\n    args.gpu = gpu\n    args.device_id = args.gpu % 8\n    validate(args)\n"
    facts = facts_of_text(f"{work}    {used} == 0 and probe()\n{start}\n")
    assert all(facts.on_some_ranks(call) for call in facts.calls("probe"))


def test_what_args_hold_of_a_rank_is_one_in_other_functions_as_well():
    work = "def work(gpu, args):\n    args.gpu = gpu\ndef validate(args):\n    if args.gpu == 0:\n        probe()\n"
    other = "    if args.epoch == 0 or args.gpu is None:\n        probe()\n"
    facts = facts_of_text(f"{work}{other}{SPAWNED[0]}\n")
    assert [facts.on_some_ranks(call) for call in facts.calls("probe")] == [True, False]


def test_a_function_that_another_library_spawns_has_no_rank():
    facts = facts_of_text("import gevent\ndef work(gpu):\n    if gpu == 0:\n        probe()\ngevent.spawn(work)\n")
    assert not facts.on_some_ranks(facts.calls("probe")[0])


PICKS = [
    "x.gather(1, idx)",
    "x.gather(-1, index=idx)",
    "x.gather(dim, idx)",
    "torch.gather(x, 1, idx)",
    "torch.broadcast_tensors(x, y)[0]",
    "einops.reduce(x, 'b c -> c', 'mean')",
    "functools.reduce(add, x)",
    "np.add.reduce(x)",
    "x.scatter_reduce(0, idx, y, 'sum')",
    "x.broadcast_to(3)",
]
COLLECTIVES = [
    "dist.all_reduce(x)",
    "dist.gather(x, parts)",
    "torch.distributed.nn.functional.all_gather(x)",
    "accelerator.gather(x)",
    "accelerator.reduce(x, 'sum')",
    "accelerator.gather_for_metrics((x, y))",
    "fabric.all_gather(x)",
    "reduce_dict(x)",
    "utils.reduce_tensor(x)",
    "comm.allreduce(x)",
    "hvd.broadcast(x, 0)",
]
LIBRARIES = "import einops, functools\nimport numpy as np\nimport torch.distributed as dist\n"


@pytest.mark.parametrize("text", PICKS)
def test_what_one_process_picks_and_reduces_is_still_of_its_rows(text):
    found = kinds(f"{LIBRARIES}for x in Loader(d):\n    y = {text}", "y")
    assert "REDUCED" not in found
    assert "LOCAL" in found


@pytest.mark.parametrize("text", COLLECTIVES)
def test_what_went_through_a_collective_is_of_all_ranks(text):
    assert kinds(f"{LIBRARIES}for x in Loader(d):\n    y = {text}", "y") == {"REDUCED"}


def test_parameters_get_the_kinds_of_what_is_passed():
    facts = facts_of_text(f"{HEAD}def train(a, b=2):\n    probe(a)\ntrain(Loader(d))\n")
    (call,) = facts.calls("probe")
    assert facts.kinds(call.args[0].value) == {Kind.LOADER}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch as t\nt.save(1)", "torch.save"),
        ("from torch import save as s\ns(1)", "torch.save"),
        (
            "import torch.utils.data.distributed\ntorch.utils.data.distributed.DistributedSampler(1)",
            "torch.utils.data.DistributedSampler",
        ),
        (
            "from torch.nn.parallel.distributed import DistributedDataParallel\nDistributedDataParallel(1)",
            "torch.nn.parallel.DistributedDataParallel",
        ),
        ("from torch.nn.parallel import DataParallel\nDataParallel(1)", "torch.nn.DataParallel"),
        ("from .utils import save\nsave(1)", ".utils.save"),
        ("save(1)", "save"),
    ],
)
def test_names_are_those_of_the_documentation(text, name):
    assert len(facts_of_text(text + "\n").calls(name)) == 1


LOOPS = f"""{HEAD}
def epoch(model, loader, optimizer):
    for x, y in loader:
        model(x).backward()

def test(model, loader):
    for batch in tqdm(loader):
        model(batch)

loader = Loader(d)
for e in range(epochs):
    epoch(m, loader, o)
    test(m, loader)
for i in range(len(loader)):
    pass
"""


def test_loops_over_batches_know_whether_they_train_and_the_epochs_around():
    facts = facts_of_text(LOOPS)
    training, evaluation = facts.batch_loops
    assert (training.trains, training.targets) == (True, ["x", "y"])
    assert (evaluation.trains, evaluation.targets) == (False, ["batch"])
    assert [facts.is_epoch_loop(loop) for loop in training.epochs] == [True]
    assert facts.code(evaluation.loader) == "loader"


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("", set()),
        ("m = nn.DataParallel(m)", {Role.DATA_PARALLEL}),
        ("import torch.distributed as dist\ndist.init_process_group()", {Role.DDP}),
        ("from accelerate import Accelerator", {Role.ACCELERATE}),
        ("import pytorch_lightning as pl", {Role.LIGHTNING}),
        ("from utils import is_main_process", {Role.DDP}),
        ("import ddp_patch", {Role.DDP_PATCH}),
    ],
)
def test_roles(text, roles):
    assert facts_of_text(f"{HEAD}{text}\n").roles == roles


GUARDED = """
if rank == 0:
    probe()
if args.local_rank in [-1, 0]:
    probe()
if not dist.is_initialized() or dist.get_rank() == 0:
    probe()
probe() if is_master() else None
rank == 0 and probe()
if int(os.environ.get("RANK", 0)) == 0:
    probe()
if os.getenv("LOCAL_RANK") == "0" and config.get("verbose"):
    probe()
first = args.rank == 0
if first and not quiet:
    probe()
args.main = is_main_process()
def test(args):
    if not args.main:
        return
    probe()
if rank <= 0 or rank < 4:
    probe()
if 0 < comm.Get_rank():
    probe()
if self._rank == 0 or data_parallel_rank == 0:
    probe()
if master or args.is_first or first_process:
    probe()
if config.get("rank") == 0:
    probe()
if rank != 0:
    pass
else:
    probe()
def f():
    if rank > 0:
        return
    probe()
@rank_zero_only
def g():
    probe()
def h():
    probe()
if is_main_process:
    h()
"""
OPEN = """
probe()
if rank == -1:
    probe()
if rank is not None:
    probe()
if args.local_rank >= 0 and -1 != rank and rank > -1:
    probe()
if rank < 0 or 0 <= dist.get_rank() or None is not args.rank:
    probe()
if dist.get_rank() != -1:
    probe()
distributed = args.local_rank != -1
if distributed:
    probe()
if not os.path.exists(args.root) or main.debug:
    probe()
if first or args.primary or is_action_main or is_first_batch:
    probe()
if mean_rank < 10 or torch.linalg.matrix_rank(x) == 0 or args.lora_rank > 0:
    probe()
if os.environ.get("RANK") is not None:
    probe()
if world_size > 1:
    probe()
def f():
    probe()
if rank == 0:
    f()
f()
def run():
    probe()
if rank == 0:
    subprocess.run()
run()
while rank:
    pass
probe()
"""


def test_tests_on_the_rank_are_seen_in_all_their_forms():
    facts = facts_of_text("import os\n" + GUARDED)
    calls = facts.calls("probe")
    assert [facts.on_some_ranks(call) for call in calls] == [True] * 18


def test_what_runs_on_all_ranks_is_told_from_them():
    facts = facts_of_text("import os, subprocess\n" + OPEN)
    assert [facts.on_some_ranks(call) for call in facts.calls("probe")] == [False] * 15


def test_every_node_is_visited_once():
    facts = facts_of_text(LOOPS)
    nodes = sum(len(found) for found in facts.tree.kinds.values())
    assert facts.tree.visits == nodes == len(facts.tree.order)


def test_neither_torch_nor_accelerate_is_imported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('the script ran')\nimport torch\n")
    code = f"""
import sys
from ddp_patch.check import command
code = command([{str(script)!r}])
assert not {{"torch", "accelerate"}} & set(sys.modules), "imported"
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
