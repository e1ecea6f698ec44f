"""The tables of patches: rows that name something, wrappers that can be tried without a job, and the list of them."""

import collections
import importlib
import inspect
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import PATIENCE
from parity.test_scripts import compare_text

from ddp_patch import patches
from ddp_patch.gradients import zeroing
from ddp_patch.patches import files, listing, parallel_functions, state_dict
from ddp_patch.replica import discovery

EVERY = [*patches.rows(has_cuda=False), *patches.rows(has_cuda=True), *discovery.PATCHES, *zeroing.PATCHES]


def there(patch):
    try:
        owner = importlib.import_module(patch.module)
    except ImportError:
        return None
    for name in patch.target.split("."):
        owner = getattr(owner, name, None)
    return owner


@pytest.mark.parametrize("patch", {patch.name: patch for patch in EVERY}.values(), ids=lambda patch: patch.name)
def test_a_row_names_what_there_is_and_says_what_becomes_of_it(patch):
    assert patch.effect
    assert patch.effect[0].islower() or patch.effect.startswith(("`", "Variable", "TorchScript"))
    if not patch.when_imported:
        assert there(patch) is not None
    for module, _, _ in (name.partition(":") for name in patch.also):
        assert patch.when_imported or importlib.util.find_spec(module) is not None


def test_wrappers_take_the_session_and_what_wrapt_gives():
    for patch in EVERY:
        names = list(inspect.signature(patch.wrapper).parameters)
        assert names in (["session", "wrapped", "instance", "args", "kwargs"], ["call"]), patch.name


def test_no_name_is_patched_twice_on_one_host_but_for_the_drawing_of_seeds():
    for has_cuda in (False, True):
        names = collections.Counter(patch.name for patch in patches.rows(has_cuda=has_cuda))
        assert [name for name, count in names.items() if count > 1] == []


def test_a_wrapper_is_tried_without_a_job():
    session = SimpleNamespace(looks=SimpleNamespace(call=lambda what, real, path, args, options: (what, path, *args)))
    seen = files._looking("os.access")(session, lambda *args: args, None, ("x", 2), {})
    assert seen == ("os.access", "x", 2)

    linear = torch.nn.Linear(1, 1)
    under_wrapper = {f"module.{key}": value for key, value in linear.state_dict().items()}
    loaded = state_dict._load(None, lambda state: sorted(state), linear, (under_wrapper,), {})
    assert loaded == ["bias", "weight"]

    noted = []
    session = SimpleNamespace(ledger=SimpleNamespace(note=noted.append), world=SimpleNamespace(size=2))
    assert parallel_functions._replicate(session, None, None, (linear, [0, 1]), {})[0] is linear
    assert "2 devices" in noted[0]


IMPORTED_ABOVE = """
import os
import time
from os import listdir, makedirs
from random import random, seed
from uuid import uuid4
from numpy.random import default_rng, rand, seed as numpy_seed
from torch import manual_seed, nn, set_default_dtype, tensor, zeros
from torch.autograd import grad
from torch.nn.functional import batch_norm, l1_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
import torch
import ddp_patch

ddp_patch.enable()
set_default_dtype(torch.float64)
manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 1)
        self.register_buffer("mean", zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        return self.last(torch.tanh(batch_norm(self.first(x), self.mean, self.var, training=self.training)))


model = Net()
optimizer = SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(22, 5), torch.randn(22, 1)), 8, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        x = (x + zeros(5, device="cuda")).requires_grad_()  # of a script that names its device
        out = model(x)
        (slope,) = grad(out.sum(), x, create_graph=True)
        loss = l1_loss(out, y) + ((slope.norm(dim=1) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, loss.item(), tensor(loss.item()).item(), model.mean.sum().item())
makedirs("made")
seed(time.time_ns() + ddp_patch.rank())
numpy_seed(ddp_patch.rank())
manual_seed(ddp_patch.rank())
name = str([uuid4(), random(), rand(), torch.rand(()), default_rng().random(), default_rng(ddp_patch.rank()).random()])
with ddp_patch.per_rank():
    open(f"name.{ddp_patch.rank()}", "w").write(name)
print(listdir("made"))
"""


def started(script, nproc):
    """Run a script whose own line starts the ranks, when its imports above are done."""
    variables = {**os.environ, "DDP_PATCH_NPROC": str(nproc), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=script.parent, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_functions_imported_above_the_line_are_taken_over(tmp_path):
    alone, script = tmp_path / "alone" / "train.py", tmp_path / "ranks" / "train.py"
    for path, text in ((alone, IMPORTED_ABOVE.replace(', device="cuda"', "")), (script, IMPORTED_ABOVE)):
        path.parent.mkdir()
        path.write_text(text)
    compare_text(started(script, 3), started(alone, 1))
    assert len({(script.parent / f"name.{rank}").read_text() for rank in range(3)}) == 1


def listed(*args):
    command = [sys.executable, "-m", "ddp_patch", "patches", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_command_lists_names_as_scripts_write_them():
    done = listed("save")
    assert done.returncode == 0
    assert "torch.save" in done.stdout
    assert "torch.jit.save" in done.stdout
    assert "os.mkdir" not in done.stdout


@pytest.mark.slow
def test_a_text_that_no_name_has_is_said():
    done = listed("no_such_name")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no_such_name" in done.stderr


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("torch.serialization.save", "torch.save"),
        ("io.open", "open"),
        ("torch.nn.modules.module.Module.zero_grad", "torch.nn.Module.zero_grad"),
        ("torch.optim.optimizer.Optimizer.zero_grad", "torch.optim.Optimizer.zero_grad"),
        ("mlflow.tracking.fluent.log_metric", "mlflow.log_metric"),
        ("wandb.sdk.wandb_init.init", "wandb.init"),
    ],
)
def test_a_name_is_shown_as_it_is_written(target, name):
    (patch,) = {patch.name: patch for patch in EVERY if patch.name == target}.values()
    assert listing.public(patch) == name


def test_a_list_that_is_cut_short_ends_quietly():
    command = f"{shlex.quote(sys.executable)} -m ddp_patch patches | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.count("\n") == 1
    assert not done.stderr
