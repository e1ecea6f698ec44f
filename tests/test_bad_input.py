"""What cannot be exact is refused in clear words, on every rank, and the job ends."""

import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import PATIENCE

SETUP = """
import os, sys, torch, torch.distributed as dist, ddp_patch
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)

def refused(action):
    # said on every rank: an uncaught error is shown by one rank only
    try:
        action()
    except ddp_patch.DdpPatchError as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
"""


def write(tmp_path, source):
    script = tmp_path / "script.py"
    script.write_text(source)
    return script


def line_of(source, mark):
    return f"script.py:{1 + source[: source.index(mark)].count(chr(10))}"


def ended_once(outcome, error, causes=0):
    """Assert that every rank failed by itself, and that the reason was shown once."""
    assert not outcome.late
    assert outcome.codes == [1] * len(outcome.codes)
    said = "".join(outcome.stderr)
    assert said.count("Traceback (most recent call last)") == 1 + causes, said
    assert said.count(f"ddp_patch.errors.{error}: ") == 1, said
    assert f" raised this {error}; the job ends." in said
    return said


# --- too late ---------------------------------------------------------------------------------------------------------


def torchrun(script, cwd, **env):
    hidden = ("DDP_PATCH_", "ACCELERATE_", "PYTHONHASH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    agent = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        cwd=cwd,
        env={**environ, "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = agent.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        agent.terminate()  # the agent takes its ranks, which have sessions of their own, with it
        _, said = agent.communicate(timeout=PATIENCE)
        pytest.fail(f"the ranks hung\n{said}")
    return agent.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize("hashes", [{"PYTHONHASHSEED": "0"}, {}], ids=["agreed hashes", "random hashes"])
def test_enable_after_a_process_group_of_the_scripts_own_says_what_to_move(tmp_path, hashes):
    source = """
import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
import ddp_patch
try:
    ddp_patch.enable()
except ddp_patch.OrderError as error:
    os.write(2, f"rank {dist.get_rank()}: {error}\\n".encode())
    sys.stderr.flush()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)
sys.exit("it was enabled")
"""
    code, said = torchrun(write(tmp_path, source), tmp_path, **hashes)
    assert code == 0, said
    for rank in range(2):
        assert f"rank {rank}: script.py:6: a process group (gloo, 2 ranks) exists already" in said
    assert said.count("Move ddp_patch.enable() above that line") == 2


def test_models_and_optimizers_made_before_enable_are_adopted(ranks, tmp_path):
    source = f"""{SETUP}
ddp_patch.disable()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(20, 4)), 10)
ddp_patch.enable()
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
print([p.tolist() for p in model.parameters()])
"""
    script = write(tmp_path, source)
    wanted = ranks.script(script, 1).ok().stdout[0]
    outcome = ranks.script(script, 2).ok()
    numbers = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    assert [float(n) for n in numbers.findall(outcome.stdout[0])] == pytest.approx(
        [float(n) for n in numbers.findall(wanted)], rel=1e-9
    )


def test_enable_while_a_loader_is_iterated_is_refused(ranks, tmp_path):
    source = f"""{SETUP}
ddp_patch.disable()
for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), 4):
    ddp_patch.enable()  # too late
"""
    said = ended_once(ranks.script(write(tmp_path, source), 2), "OrderError")
    assert f"{line_of(source, '# too late')}: ddp_patch.enable() came after a DataLoader had been iterated" in said
    assert "Move this line above that loop" in said


def test_enable_after_a_backward_is_refused(ranks, tmp_path):
    source = f"""{SETUP}
ddp_patch.disable()
model = torch.nn.Linear(3, 2)
model(torch.ones(4, 3)).sum().backward()
refused(ddp_patch.enable)  # too late
assert not ddp_patch.is_enabled()
assert type(DataLoader.__iter__).__name__ == "function"
print("apart")
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert text.startswith("OrderError: script.py:")
        assert "ddp_patch.enable() came after a backward (a parameter of shape (2" in text
        assert "Move this line above the training" in text
    assert outcome.stdout == ["apart\n", "apart\n"]


TRAINED_ABOVE = f"""{SETUP}
ddp_patch.disable()
SEED
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.arange(80.0).view(20, 4) / 80)

def train(shuffle):
    for (x,) in DataLoader(data, 10, shuffle=shuffle):
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

train(True)
ddp_patch.enable()
train(False)
print([p.tolist() for p in model.parameters()])
"""


@pytest.mark.slow
def test_an_epoch_above_the_line_that_had_a_seed_is_one_processs(ranks, tmp_path):
    script = write(tmp_path, TRAINED_ABOVE.replace("SEED", "torch.manual_seed(0)"))
    alone, together = (eval(ranks.script(script, n).ok().stdout[0]) for n in (1, 2))
    torch.testing.assert_close(list(map(torch.tensor, together)), list(map(torch.tensor, alone)), rtol=1e-9, atol=1e-9)


def test_an_epoch_above_the_line_that_had_no_seed_is_told_when_the_model_is_called(ranks, tmp_path):
    source = TRAINED_ABOVE.replace("SEED", "torch.seed()")
    assert "'weight' of Linear differs between ranks" in ended_once(
        ranks.script(write(tmp_path, source), 2), "LockstepError"
    )


# --- ranks that do not see the same -----------------------------------------------------------------------------------


def test_datasets_of_different_length_are_refused_on_every_rank(ranks, tmp_path):
    source = f"""{SETUP}
loader = DataLoader(TensorDataset(torch.randn(10 + ddp_patch.rank(), 2)), 5)
refused(lambda: next(iter(loader)))  # first
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert text.startswith(f"LockstepError: {line_of(source, '# first')}: ")
        assert "the TensorDataset has a length of 10 on rank 0, 11 on rank 1," in text
        assert "torch.manual_seed(0)" in text


HELD = {
    "a list": "[(f'{n}.png', n % 3) for n in order]",
    "files": "Files(order)",
    "tensors": "torch.utils.data.ConcatDataset([TensorDataset(torch.tensor(order) / 7)] * 2)",
    "a subset": "torch.utils.data.Subset(TensorDataset(torch.randn(20, 2)), order)",
}


@pytest.mark.quick("tensors")
@pytest.mark.parametrize("held", HELD)
def test_samples_in_another_order_are_refused_on_every_rank(ranks, tmp_path, held):
    """As threads complete, or as file systems of several hosts list."""
    source = f"""{SETUP}
class Files(torch.utils.data.Dataset):
    def __init__(self, order):
        self.paths, self.seen = [f"/data-{{ddp_patch.rank()}}/{{n}}.png" for n in order], [None] * 20
    def __len__(self):
        return 20
    def __getitem__(self, at):
        return at

def loader_of(order):
    return DataLoader({HELD[held]}, 5, collate_fn=list)

assert len(list(loader_of([*range(20)]))) >= 4
refused(lambda: next(iter(loader_of([*range(20)][:: 1 - 2 * ddp_patch.rank()]))))  # parted
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert text.startswith(f"LockstepError: {line_of(source, '# parted')}: ")
        assert "for the same sample" in text
        assert "Sort what the file system lists" in text


@pytest.mark.slow
def test_datasets_may_hold_what_one_rank_has_loaded(ranks, tmp_path):
    source = f"""{SETUP}
class Caching(torch.utils.data.Dataset):
    def __init__(self):
        self.cache, self.count, self.items = [None] * 12, torch.zeros(12), [{{"at": i}} for i in range(12)]
    def __len__(self):
        return 12
    def __getitem__(self, at):
        self.cache[at] = self.items[at]["row"] = torch.tensor([float(at)])
        self.count[at] += 1
        return self.cache[at]

data = Caching()
train, held = torch.utils.data.Subset(data, range(8)), torch.utils.data.Subset(data, range(8, 12))
for epoch in range(2):
    print(sum(x.sum().item() for x in DataLoader(train, 4)), sum(x.sum().item() for x in DataLoader(held, 4)))
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stdout[0] == "28.0 38.0\n" * 2


def test_a_job_with_datasets_of_different_length_ends(ranks, tmp_path):
    source = f"""{SETUP}
for (x,) in DataLoader(TensorDataset(torch.randn(10 + ddp_patch.rank(), 2)), 5):
    print(x.sum())
"""
    outcome = ranks.script(write(tmp_path, source), 3)
    ended_once(outcome, "LockstepError")
    assert outcome.stdout == ["", "", ""]


SAMPLERS = {
    "sampler=Order()": "the ranks' samplers drew different batches, beginning with",
    "batch_sampler=Batches()": "the ranks' samplers drew different batches, beginning with",
}


@pytest.mark.quick("sampler=Order()")
@pytest.mark.parametrize("given", SAMPLERS)
def test_samplers_that_differ_between_ranks_are_refused_on_every_rank(ranks, tmp_path, given):
    size = ", batch_size=20" if given.startswith("sampler") else ""
    source = f"""{SETUP}
class Order:
    def __iter__(self):
        first = os.getpid() % 40
        return iter([*range(first, 40), *range(first)])
    def __len__(self):
        return 40
class Batches:
    def __iter__(self):
        order = list(Order())
        return iter([order[:20], order[20:]])
    def __len__(self):
        return 2
loader = DataLoader(TensorDataset(torch.randn(40, 2)){size}, {given})
refused(lambda: next(iter(loader)))
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert text.startswith("LockstepError: script.py:")
        assert SAMPLERS[given] in text
        assert re.search(r"\[\d+, \d+, \d+, \d+\] on rank 0, \[\d+, \d+, \d+, \d+\] on rank 1\.", text), text


def test_samplers_of_different_length_are_refused_on_every_rank(ranks, tmp_path):
    source = f"""{SETUP}
loader = DataLoader(TensorDataset(torch.ones(40, 2)), 5, sampler=range(20 + 10 * ddp_patch.rank()))
refused(lambda: [x.sum().item() for (x,) in loader])
"""
    outcome = ranks.script(write(tmp_path, source), 2)
    assert outcome.codes == [0, 0], outcome.said()
    for text in outcome.stderr:
        assert text.startswith("LockstepError: script.py:")
        assert "20 on rank 0" in text or "4 on rank 0" in text
        assert "30 on rank 1" in text or "6 on rank 1" in text


# --- scripts that distribute themselves -------------------------------------------------------------------------------

ASIDE = """
import atexit, gc, os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(8.0).view(8, 1))
"""

OWN_GROUP = """
dist.init_process_group("gloo")  # aside
model = torch.nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
backward = torch.Tensor.backward
"""

NO_GROUP = """
if not dist.is_initialized():
    dist.init_process_group("gloo")  # aside
model = torch.nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False))
backward = torch.Tensor.backward
"""

ACCELERATOR = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)  # aside
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 2))
backward = accelerator.backward
"""

TRAINED = """
seen = []
for (x,) in loader:
    assert type(x) is torch.Tensor and x.shape == (2, 1)
    seen += x.flatten().tolist()
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()
weight = next(model.parameters()).item()
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, sorted(seen))
print(dist.get_rank(), sorted(sum(gathered, [])), f"{weight:.12f}")
torch.save(weight, f"rank{dist.get_rank()}.pt")
# A thread of gloo's that lets go of a tensor while the interpreter ends aborts the process (torch 2.13, pytorch issue
# 190489). The threads end with their group, which DDP holds on to.
if "destroys" in sys.argv:
    del model, optimizer, loader, loss, backward
    accelerator = None
    gc.collect()
    dist.destroy_process_group()
else:  # the whole way to the end of the interpreter
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
"""


def by_hand(batches):
    weight = 1.0
    for batch in batches:
        weight -= 0.01 * sum(2 * weight * x * x for x in batch) / len(batch)
    return weight


@pytest.mark.quick("destroys-Accelerator", "leaves-init_process_group")
@pytest.mark.parametrize(
    ("name", "source", "batches"),
    [
        ("torch.distributed.init_process_group", OWN_GROUP, [(0, 2, 1, 3), (4, 6, 5, 7)]),
        ("torch.distributed.init_process_group", NO_GROUP, [(0, 2, 1, 3), (4, 6, 5, 7)]),
        ("accelerate.Accelerator", ACCELERATOR, [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
    ids=["init_process_group", "asks for a group", "Accelerator"],
)
@pytest.mark.parametrize("ending", ["leaves", "destroys"])
def test_a_script_that_distributes_itself_is_left_alone(ranks, tmp_path, name, source, batches, ending):
    outcome = ranks.script(write(tmp_path, ASIDE + source + TRAINED), 2, ending).ok()
    every_row = [float(row) for row in range(8)]
    assert outcome.stdout == [f"{rank} {every_row} {by_hand(batches):.12f}\n" for rank in range(2)]
    assert outcome.files() == ["rank0.pt", "rank1.pt"]
    where = line_of(ASIDE + source, "# aside")
    said = f"{where}: the script calls {name}, so it distributes itself: ddp_patch stands aside.\n"
    assert "".join(outcome.stderr).count("ddp_patch") == 1, outcome.said()
    assert said in outcome.stderr[0]


def test_standing_aside_puts_every_name_back(ranks, tmp_path):
    source = """
import ddp_patch, sys, torch, torch.distributed as dist
ddp_patch.disable()
names = lambda: [
    torch.save, vars(torch.utils.data.DataLoader)["__iter__"], torch.autograd.backward, dist.init_process_group,
    vars(torch.nn.DataParallel)["forward"], vars(torch.nn.Module)["__call__"],
]
before = names()
ddp_patch.enable()
torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
assert sum(a is not b for a, b in zip(before, names())) == len(before)
dist.init_process_group("gloo")
print([a is b for a, b in zip(before, names())])
dist.destroy_process_group()
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stdout == [f"{[True] * 6}\n"] * 2


def test_a_script_that_distributes_itself_after_batches_were_dealt_is_refused(ranks, tmp_path):
    source = f"""{SETUP}
for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), 4):
    pass
dist.init_process_group("gloo")  # late
"""
    said = ended_once(ranks.script(write(tmp_path, source), 2), "OrderError")
    assert (
        f"{line_of(source, '# late')}: the script calls torch.distributed.init_process_group, after batches had been"
        in said
    )
    assert "Leave ddp_patch.enable() out" in said


# --- which dimension is the batch -------------------------------------------------------------------------------------

MASKED = f"""{SETUP}
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x, mask=None):
        return self.linear(x) * mask.sum()

torch.manual_seed(0)
model = MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mask = torch.eye(8)
for (x,) in DataLoader(TensorDataset(torch.randn(16, 3)), 8):
    optimizer.zero_grad()
    loss = model(CALL).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.12f}}")
"""
MODELS = ["Masked()", "torch.nn.DataParallel(Masked())", "torch.compile(Masked(), backend='eager')"]
CALLS = ["x, mask", "x, mask=mask"]


def masked(tmp_path, model, call, first=""):
    return write(tmp_path, first + MASKED.replace("MODEL", model).replace("CALL", call))


def losses(text):
    return [float(line) for line in text.split()]


@pytest.mark.quick("Masked()-x, mask", "torch.nn.DataParallel(Masked())-x, mask=mask")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("model", MODELS)
def test_a_call_whose_batch_dimension_cannot_be_told_runs_on_batches(ranks, tmp_path, model, call):
    script = masked(tmp_path, model, call)
    wanted = losses(ranks.script(script, 1).ok().stdout[0])
    outcome = ranks.script(script, 2, env={"DDP_PATCH_REPORT": "1"}).ok()
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)
    assert "dimensions 0 and 1 of 'mask', shape (8, 8), equal the batch size" in outcome.stderr[0]
    assert "Write ddp_patch.enable(batch_dims={'mask': None}) if it is not a batch" in outcome.stderr[0]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("model", MODELS)
def test_the_batch_dims_option_settles_it(ranks, tmp_path, model, call):
    script = masked(tmp_path, model, call)
    wanted = losses(ranks.script(script, 1).ok().stdout[0])
    by_variable = ranks.script(script, 2, env={"DDP_PATCH_BATCH_DIMS": "mask=none"}).ok()
    by_command_line = ranks.script(script, 2, options=["--batch-dims", "mask=none"]).ok()
    assert len(wanted) == 2
    assert losses(by_variable.stdout[0]) == pytest.approx(wanted, rel=1e-9)
    assert losses(by_command_line.stdout[0]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_an_argument_without_a_name_is_named_by_its_number(ranks, tmp_path):
    source = MASKED.replace("MODEL", "Masked()").replace("CALL", "x, mask").replace("x, mask=None", "*given")
    script = write(tmp_path, source.replace("self.linear(x) * mask", "self.linear(given[0]) * given[1]"))
    wanted = losses(ranks.script(script, 1).ok().stdout[0])
    outcome = ranks.script(script, 2, env={"DDP_PATCH_REPORT": "1"}).ok()
    assert "Write ddp_patch.enable(batch_dims={'argument 1': None}) if it is not a batch" in outcome.stderr[0]
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)
    outcome = ranks.script(script, 2, env={"DDP_PATCH_BATCH_DIMS": "argument 1=none"}).ok()
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_the_batch_dims_argument_settles_it(ranks, tmp_path):
    wanted = losses(ranks.script(masked(tmp_path, MODELS[0], CALLS[0]), 1).ok().stdout[0])
    first = "import ddp_patch\nddp_patch.disable()\nddp_patch.enable(batch_dims={'mask': None})\n"
    outcome = ranks.script(masked(tmp_path, MODELS[0], CALLS[0], first), 2).ok()
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_the_batch_dims_option_can_name_the_dimension(ranks, tmp_path):
    source = MASKED.replace("MODEL", "Masked()").replace("CALL", "x, mask").replace("mask.sum()", "mask[:, :1]")
    source = source.replace("torch.eye(8)", "torch.randn(8, 8)")
    script = write(tmp_path, source)
    wanted = losses(ranks.script(script, 1).ok().stdout[0])
    outcome = ranks.script(script, 2, env={"DDP_PATCH_BATCH_DIMS": "mask=0"}).ok()
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)


# --- outputs without a batch ------------------------------------------------------------------------------------------

SUMMED = f"""{SETUP}
def counted():  # where nobody looks
    return int(os.environ["CALLS"])

class Summed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, x):
        if self.training:
            return self.linear(x) if counted() < FROM else self.linear(x).mean(0)

torch.manual_seed(0)
model = MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(30, 3)), 8):
    os.environ["CALLS"] = str(int(os.environ.get("CALLS", "0")) + 1)
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.12f}}")
"""


@pytest.mark.parametrize("model", ["torch.nn.DataParallel(Summed())", "Summed()"])
def test_an_output_that_loses_its_batch_dimension_later_is_refused(ranks, tmp_path, model):
    script = write(tmp_path, SUMMED.replace("MODEL", model).replace("FROM", "3"))
    said = ended_once(ranks.script(script, 2), "BatchError")
    assert "Summed returned a tensor of shape (5,) (output) for 4 of 8 rows" in said
    assert "reduce over them outside" in said


ONE_GRAPH = (
    SETUP
    + """
import torch.nn.functional as F
ddp_patch.enable()
ended = torch.compile(lambda z, y: F.cross_entropy(z, y), backend="eager", fullgraph=True)

class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)

    def forward(self, x, y):
        return ended(self.last(self.norm(x)), y)

model = Normed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(TensorDataset(torch.randn(16, 3), torch.arange(16) % 3), 8):
    model(x, y).backward()
    optimizer.step()
"""
)


@pytest.mark.slow
def test_statistics_are_not_updated_twice_where_a_compiled_loss_must_be_one_graph(ranks, tmp_path):
    said = ended_once(ranks.script(write(tmp_path, ONE_GRAPH), 2), "BatchError", causes=1)
    assert "updated statistics before that was known. Write fullgraph=False." in said


@pytest.mark.slow
def test_a_model_that_is_seen_to_need_the_whole_batch_gets_it(ranks, tmp_path):
    middle = SUMMED.replace(".mean(0)", ".median(0).values")
    script = write(tmp_path, middle.replace("MODEL", "Summed()").replace("FROM", "0"))
    wanted = losses(ranks.script(script, 1).ok().stdout[0])
    outcome = ranks.script(script, 2, options=["--report"]).ok()
    assert losses(outcome.stdout[0]) == pytest.approx(wanted, rel=1e-9)
    assert "Summed (20 parameters): Tensor.median looks at the whole batch" in outcome.stderr[0]


# --- doors below torch functions --------------------------------------------------------------------------------------


def a_batch():
    from torch.utils.data import DataLoader, TensorDataset

    (x,) = next(iter(DataLoader(TensorDataset(torch.arange(15.0).view(5, 3) - 4), 5)))
    return x


def script_function(x):
    @torch.jit.script
    def scripted(x):
        return x.sum(0) * 2

    return scripted(x)


def script_module(x):
    return torch.jit.script(torch.nn.Softmax(dim=0))(x)


def trace_function(x):
    return torch.jit.trace(lambda x: x.cumsum(0), (torch.ones(5, 3),))(x)


def vmap_rows(x):
    return torch.func.vmap(lambda row: row * row.sum())(x)


def vmap_columns(x):
    return torch.func.vmap(lambda column: column / column.sum(), in_dims=1, out_dims=1)(x)


def func_grad(x):
    return torch.func.grad(lambda x: (x**3).mean())(x)


def jacobian(x):
    return torch.autograd.functional.jacobian(lambda x: x.sum(0), x)


def forward_mode(x):
    return torch.func.jvp(lambda x: (x**2).sum(0), (x,), (torch.ones(5, 3),))[1]


def new_tensor(x):
    return torch.tensor(x)


def as_tensor(x):
    return torch.as_tensor(x)


def tensor_of_rows(x):
    return torch.tensor([row.sum() for row in x])


def as_array(x):
    import numpy as np

    return torch.from_numpy(np.asarray(x).copy())


def through_dlpack(x):
    return torch.from_dlpack(x)


def to_another_library(x):
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))


def low_level_operator(x):
    return torch.ops.aten.sum.dim_IntList(x, [0])


def foreach(x):
    return torch._foreach_mul([x, x], 2.0)[1]


def storage(x):
    return torch.tensor(x.untyped_storage().nbytes() // x.element_size())


def in_a_list(x):
    return torch.nn.utils.rnn.pad_sequence([x, x], batch_first=True)


def checkpointed(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: x - x.mean(0), x, use_reentrant=False)


def checkpointed_reentrant(x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: x - x.mean(0), x, use_reentrant=True)


def as_parameter(x):
    return torch.nn.Parameter(x).sum(0)


def buffer_of_a_module(x):
    module = torch.nn.Module()
    module.register_buffer("seen", x)
    return module.state_dict()["seen"].sum(0)


def as_sparse(x):
    return x.to_sparse().coalesce().values().cumsum(0)


def in_threads(x):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: x.cumsum(0)).result()


DOORS = [
    script_function, script_module, trace_function, vmap_rows, vmap_columns, func_grad, jacobian, forward_mode,
    new_tensor, as_tensor, tensor_of_rows, as_array, through_dlpack, to_another_library,
    low_level_operator, foreach,
    storage, in_a_list, checkpointed, checkpointed_reentrant, as_parameter, buffer_of_a_module, as_sparse, in_threads,
]  # fmt: skip


def enter_door(name):
    """Give a door's result as the script would see it, or what it raised."""
    try:
        return ["value", globals()[name](a_batch()).detach().tolist()]
    except Exception as error:
        return ["raised", f"{type(error).__name__}: {error}"]


@pytest.mark.quick("storage", "in_threads", "jacobian", "as_array", "vmap_columns", "trace_function")
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_batch_in_an_unknown_door_gives_the_right_number_or_raises(ranks, door):
    kind, wanted = enter_door(door.__name__)
    assert kind == "value", wanted
    outcome = ranks.call(enter_door, 2, door.__name__).ok()
    for found, given in outcome.results:
        if found == "value":
            torch.testing.assert_close(torch.tensor(given), torch.tensor(wanted))
        else:
            assert given


# --- the scripts' own autograd functions ------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class Similarity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return scale * (x * weight) @ x.t(), x.sum(0)

    @staticmethod
    def backward(ctx, grad, grad_sum):
        x, weight = ctx.saved_tensors
        both = ctx.scale * (grad + grad.t()) @ x
        return both * weight + grad_sum, ctx.scale * ((grad @ x) * x).sum(0), None


def weighted(find):
    """Make a function of a weight that finds its batch elsewhere than among its arguments."""

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, where):
            x = find(where)
            ctx.x = x
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            return (grad * ctx.x).sum(0), None

    return Weighted


def cubed(z, weight):
    return Cube.apply(z * weight).mean()


def similar(z, weight):
    pairs, total = Similarity.apply(z, weight, 0.5)
    return pairs.logsumexp(1).mean() + total.pow(2).sum()


def in_a_nest(z, weight):
    function = weighted(lambda where: where["parts"][0])
    return function.apply(weight, {"parts": [z.detach()]}).sum() + weight.pow(2).sum() + z.pow(2).mean()


def closed_over(z, weight):
    found = z.detach()
    function = weighted(lambda where: found)
    return function.apply(weight, None).sum() + weight.pow(2).sum() + z.pow(2).mean()


LOSSES = [cubed, similar]
HIDDEN = [in_a_nest, closed_over]


def train_with(name):
    """Two steps with a loss; gives losses, gradients and weights."""
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4).double()
    weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.01)
    seen = []
    for (x,) in DataLoader(TensorDataset(torch.randn(13, 3, dtype=torch.float64)), 7):
        optimizer.zero_grad()
        loss = globals()[name](model(x), weight)
        loss.backward()
        optimizer.step()
        seen += [loss.item(), weight.grad.tolist(), model.weight.grad.flatten().tolist()]
    return [*seen, weight.tolist(), model.weight.flatten().tolist()]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_an_autograd_function_of_the_scripts_own_keeps_value_and_gradient(ranks, loss):
    (wanted,) = ranks.call(train_with, 1, loss.__name__).ok().results
    outcome = ranks.call(train_with, 2, loss.__name__).ok()
    for result in outcome.results:
        for given, alone in zip(result, wanted, strict=True):
            assert given == pytest.approx(alone, rel=1e-9)


def train_or_raise(name):
    try:
        return ["value", *train_with(name)]
    except Exception as error:
        return ["raised", f"{type(error).__name__}: {error}"]


@pytest.mark.parametrize("loss", HIDDEN, ids=lambda loss: loss.__name__)
def test_a_batch_that_is_hidden_from_an_autograd_function_keeps_its_gradient_or_raises(ranks, loss):
    (wanted,) = ranks.call(train_or_raise, 1, loss.__name__).ok().results
    assert wanted[0] == "value", wanted
    outcome = ranks.call(train_or_raise, 2, loss.__name__).ok()
    for result in outcome.results:
        if result[0] == "value":
            for given, alone in zip(result[1:], wanted[1:], strict=True):
                assert given == pytest.approx(alone, rel=1e-9)


def cube_of_an_input(power):
    """Give the gradient of an input that the script asked for."""
    x = a_batch().double().requires_grad_()
    y = Cube.apply(x)
    (y.sum() ** power).backward()
    return [y.detach().tolist(), x.grad.tolist()]


@pytest.mark.parametrize("power", [1, 2])
def test_an_autograd_function_keeps_the_gradient_of_an_input(ranks, power):
    (wanted,) = ranks.call(cube_of_an_input, 1, power).ok().results
    outcome = ranks.call(cube_of_an_input, 2, power).ok()
    for result in outcome.results:
        for given, alone in zip(result, wanted, strict=True):
            torch.testing.assert_close(torch.tensor(given), torch.tensor(alone))
