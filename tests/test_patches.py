"""The tables of patches: rows that name something, wrappers that can be tried without a job, and the list of them."""

import collections
import importlib
import inspect
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ddp_patch import patches
from ddp_patch.patches import files, listing, parallel_functions, state_dict
from ddp_patch.replica import discovery

EVERY = [*patches.rows(has_cuda=False), *patches.rows(has_cuda=True), *discovery.PATCHES]


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
    session = SimpleNamespace(files=SimpleNamespace(leaders=lambda path: f"/leaders/{path}"))
    seen = files._translated(session, lambda *args: args, None, ("x", 2), {})
    assert seen == ("/leaders/x", 2)

    linear = torch.nn.Linear(1, 1)
    under_wrapper = {f"module.{key}": value for key, value in linear.state_dict().items()}
    loaded = state_dict._load(None, lambda state: sorted(state), linear, (under_wrapper,), {})
    assert loaded == ["bias", "weight"]

    noted = []
    session = SimpleNamespace(ledger=SimpleNamespace(note=noted.append), world=SimpleNamespace(size=2))
    assert parallel_functions._replicate(session, None, None, (linear, [0, 1]), {})[0] is linear
    assert "2 devices" in noted[0]


def listed(*args):
    command = [sys.executable, "-m", "ddp_patch", "patches", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_lists_names_as_scripts_write_them():
    done = listed("save")
    assert done.returncode == 0
    assert "torch.save" in done.stdout
    assert "torch.jit.save" in done.stdout
    assert "os.mkdir" not in done.stdout


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
