"""The life of a session: when it begins, what it leaves behind, and what it says about itself."""

import asyncio
import json
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE

import ddp_patch
from ddp_patch.errors import OptionError


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Nobody starts ranks of this process, and no session outlives its test."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DDP_PATCH_NPROC", "1")
    assert not ddp_patch.is_enabled()
    yield
    left_enabled = ddp_patch.is_enabled()
    ddp_patch.disable()
    assert not left_enabled


def python(source, *flags):
    done = subprocess.run(
        [sys.executable, *flags, "-c", source],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy():
    loaded = python("import sys, ddp_patch; print(*sys.modules)").split()
    assert "ddp_patch" in loaded
    assert not {"torch", "numpy", "accelerate", "wrapt"} & set(loaded)


def test_importing_the_package_imports_little():
    source = "import sys; before = set(sys.modules); import ddp_patch; print(*set(sys.modules) - before)"
    loaded = python(source).split()
    assert len([name for name in loaded if name.startswith("ddp_patch")]) <= 15
    assert len(loaded) <= 45


WATCHED = """
import builtins, os, sys, gc
import torch, torch.distributed, torch.utils.data, torch.nn.parallel, accelerate, accelerate.accelerator
from torch.optim import optimizer as optim

OWNERS = [
    torch, torch.serialization, torch.autograd, torch.autograd.function.Function, torch.distributed,
    torch.distributed.distributed_c10d, torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel,
    torch.utils.data.DataLoader, torch.optim.Optimizer, torch.nn.Module, torch.nn.BatchNorm1d, torch.Tensor,
    accelerate.Accelerator, builtins,
]

def held():
    # vars, not getattr: binding makes a new object each time
    found = {(owner.__name__, name): value for owner in OWNERS for name, value in vars(owner).items()}
    found["stdout"] = sys.stdout
    found["step hooks"] = len(optim._global_optimizer_pre_hooks) + len(optim._global_optimizer_post_hooks)
    return found

def changes(before, after):
    return sorted(
        str(key if isinstance(key, str) else ".".join(key))
        for key in before.keys() | after.keys()
        if before.get(key) is not after.get(key)
    )
"""


@pytest.mark.slow
def test_importing_and_enabling_on_one_process_patches_nothing():
    source = f"""{WATCHED}
before = held()
import ddp_patch
assert changes(before, held()) == []
ddp_patch.enable(nproc=1)
print(changes(before, held()), ddp_patch.is_enabled())
model = torch.nn.Linear(2, 1)
torch.optim.SGD(model.parameters(), 0.1)
(x,) = next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), 4)))
print(type(x) is torch.Tensor, type(model) is torch.nn.Linear, torch.distributed.is_initialized())
"""
    assert python(source) == "[] True\nTrue True False\n"


# --- enable and disable on one process --------------------------------------------------------------------------------


def test_disable_without_a_session_does_nothing():
    ddp_patch.disable()
    ddp_patch.disable()
    assert not ddp_patch.is_enabled()


def test_enable_lasts_until_disable():
    ddp_patch.enable()
    assert ddp_patch.is_enabled()
    ddp_patch.disable()
    assert not ddp_patch.is_enabled()


def test_enabling_again_with_equal_options_changes_nothing():
    ddp_patch.enable(report=False, batch_dims={"mask": None})
    again = ddp_patch.enable(batch_dims={"mask": None})
    with again:
        assert ddp_patch.is_enabled()
    assert ddp_patch.is_enabled()
    ddp_patch.disable()


def test_enabling_again_with_other_options_is_refused(monkeypatch):
    ddp_patch.enable(timeout=60)
    with pytest.raises(OptionError) as caught:
        ddp_patch.enable(timeout=61)
    assert "timeout=60" in str(caught.value)
    assert "timeout=61" in str(caught.value)
    assert "ddp_patch.disable()" in str(caught.value)
    monkeypatch.setenv("DDP_PATCH_TIMEOUT", "62")
    with pytest.raises(OptionError):
        ddp_patch.enable()
    ddp_patch.enable(timeout=60)
    ddp_patch.disable()
    ddp_patch.enable(timeout=61)
    ddp_patch.disable()


@pytest.mark.parametrize("options", [{"nproc": 0}, {"speed": 9}, {"timeout": "long"}])
def test_a_refused_enable_leaves_nothing_enabled(options):
    with pytest.raises(OptionError):
        ddp_patch.enable(**options)
    assert not ddp_patch.is_enabled()


@pytest.mark.parametrize("given", [2, "nproc=2", {"nproc": 2}, True])
def test_options_go_by_name(given):
    with pytest.raises(OptionError) as caught:
        ddp_patch.enable(given)
    assert str(caught.value) == f"ddp_patch.enable({given!r}): options go by name, for instance nproc=2."
    assert not ddp_patch.is_enabled()


def test_a_context_is_active_inside_and_only_there():
    with ddp_patch.enable():
        assert ddp_patch.is_enabled()
        with ddp_patch.enable():
            assert ddp_patch.is_enabled()
        assert ddp_patch.is_enabled()
    assert not ddp_patch.is_enabled()


def test_a_context_ends_with_the_scripts_own_exception():
    error = KeyError("gone")
    with pytest.raises(KeyError) as caught, ddp_patch.enable():
        raise error
    assert caught.value is error
    assert not ddp_patch.is_enabled()


def test_a_bare_decorator_is_active_only_while_the_function_runs():
    @ddp_patch.enable
    def train(a, *, b):
        """Train."""
        return ddp_patch.is_enabled(), a, b

    assert not ddp_patch.is_enabled()
    assert train(1, b=2) == (True, 1, 2)
    assert not ddp_patch.is_enabled()
    assert (train.__name__, train.__doc__) == ("train", "Train.")


def test_a_decorator_with_options_is_active_only_while_the_function_runs():
    @ddp_patch.enable(nproc=1, timeout=60)
    def train():
        with pytest.raises(OptionError, match="timeout=60"):
            ddp_patch.enable(timeout=61)
        return ddp_patch.is_enabled()

    assert not ddp_patch.is_enabled()
    assert train() is True
    assert train() is True
    assert not ddp_patch.is_enabled()


def test_a_decorated_coroutine_is_active_while_its_body_runs():
    @ddp_patch.enable
    async def train():
        await asyncio.sleep(0)
        return ddp_patch.is_enabled()

    assert asyncio.run(train())
    assert not ddp_patch.is_enabled()


def test_a_generator_cannot_be_decorated():
    def batches():
        yield ddp_patch.is_enabled()

    async def later():
        yield ddp_patch.is_enabled()

    for function in (batches, later):
        with pytest.raises(OptionError, match="above the function that goes through it"):
            ddp_patch.enable(function)


def test_a_decorated_function_in_an_enabled_script_leaves_it_enabled():
    ddp_patch.enable()

    @ddp_patch.enable
    def bare():
        return ddp_patch.is_enabled()

    @ddp_patch.enable()
    def called():
        return ddp_patch.is_enabled()

    assert bare()
    assert ddp_patch.is_enabled()
    assert called()
    assert ddp_patch.is_enabled()
    ddp_patch.disable()


@pytest.mark.parametrize("decorate", [ddp_patch.enable, lambda function: ddp_patch.enable()(function)])
def test_an_exception_passes_through_a_decorated_function(decorate):
    error = ZeroDivisionError("over there")

    @decorate
    def train():
        raise error

    with pytest.raises(ZeroDivisionError) as caught:
        train()
    assert caught.value is error
    assert not ddp_patch.is_enabled()


def test_a_decorated_function_may_exit():
    @ddp_patch.enable
    def train():
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        train()
    assert caught.value.code == 3
    assert not ddp_patch.is_enabled()


def test_the_report_of_one_process_says_that_nothing_was_done():
    wanted = "ddp_patch report: one process, nothing was patched; this is the script itself.\n"
    assert str(ddp_patch.report()) == wanted
    with ddp_patch.enable():
        assert str(ddp_patch.report()) == wanted
    assert str(ddp_patch.report()) == wanted
    assert ddp_patch.report().world_size == 1


@pytest.mark.slow
def test_the_report_option_prints_on_stderr_when_one_process_ends(ranks, tmp_path):
    script = write(tmp_path, "import ddp_patch\nddp_patch.enable(report=True, nproc=1)\nprint('end')\n")
    outcome = ranks.script(script, 1).ok()
    assert outcome.stdout == ["end\n"]
    assert outcome.stderr == ["ddp_patch report: one process, nothing was patched; this is the script itself.\n"]


# --- on ranks ---------------------------------------------------------------------------------------------------------


def write(tmp_path, source):
    script = tmp_path / "script.py"
    script.write_text(source)
    return script


MODEL = """
import copy, json, os, pickle, sys
import torch, ddp_patch
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))

    def forward(self, x):
        return self.layers(x)

def train(seed=0):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(22, 4)), 8, shuffle=True):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return model, loss.item()
"""

PUT_BACK = f"""{WATCHED}
import ddp_patch, json
ddp_patch.disable()  # of the command line
before = held()
ddp_patch.enable()
model = torch.nn.Linear(2, 1)
torch.optim.SGD(model.parameters(), 0.1)
during = changes(before, held())
ddp_patch.disable()
after = changes(before, held())
os.write(2, json.dumps([during, after]).encode())
"""


def test_disable_puts_the_very_objects_back_for_every_patched_name(ranks, tmp_path):
    outcome = ranks.script(write(tmp_path, PUT_BACK), 2).ok()
    for text in outcome.stderr:
        during, after = json.loads(text)
        assert {
            "torch.save",
            "torch.serialization.save",
            "DataLoader.__iter__",
            "DataParallel.__init__",
            "DataParallel.forward",
            "Optimizer.add_param_group",
            "Module.__call__",
            "torch.autograd.backward",
            "Function.apply",
            "torch.distributed.init_process_group",
            "torch.distributed.distributed_c10d.init_process_group",
            "DistributedDataParallel.__init__",
            "Accelerator.__init__",
            "step hooks",
        } <= set(during)
        assert after == []


@pytest.mark.slow
def test_disable_inside_leaves_nothing_behind_after_training(ranks, tmp_path):
    source = f"""{MODEL}{WATCHED}
ddp_patch.disable()
before = held()
ddp_patch.enable()
model, _ = train()
ddp_patch.disable()
sys.stderr.write(json.dumps(changes(before, held())))
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stderr == ["[]", "[]"]


def test_a_model_and_its_batch_norm_have_their_classes_back_after_disable(ranks, tmp_path):
    source = f"""{MODEL}
model, _ = train()
under = [type(model) is Net, type(model.layers[1]) is torch.nn.BatchNorm1d, isinstance(model, Net)]
ddp_patch.disable()
after = [type(model) is Net, type(model.layers[1]) is torch.nn.BatchNorm1d, isinstance(model, Net)]
out = model(torch.ones(5, 4))
out.sum().backward()
os.write(2, json.dumps([under, after, type(out) is torch.Tensor, list(out.shape)]).encode())
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert json.loads(text) == [[False, True, True], [True, True, True], True, [5, 1]]


@pytest.mark.slow
def test_copies_of_a_model_name_the_class_its_author_wrote(ranks, tmp_path):
    source = f"""{MODEL}
model, _ = train()
assert type(model) is not Net and model.__class__ is Net and type(model).__name__ == "Net"
torch.save(model, "model.pt")
with open("model.pt", "rb") as stream:
    loaded = torch.load(stream, weights_only=False)
pickled = pickle.loads(pickle.dumps(model))
copies = [loaded, pickled, copy.deepcopy(model), copy.copy(model)]
names = [[type(m) is Net, type(m.layers[1]) is torch.nn.BatchNorm1d] for m in copies[:3]] + [[type(copies[3]) is Net]]
same = [
    list(m.state_dict()) == list(model.state_dict())
    and all(torch.equal(a, b) for a, b in zip(m.state_dict().values(), model.state_dict().values()))
    for m in copies
]
os.write(2, json.dumps([names, same, b"ddp_patch" in pickle.dumps(model), type(model) is Net]).encode())
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert json.loads(text) == [[[True, True]] * 3 + [[True]], [True] * 4, False, False]


@pytest.mark.slow
def test_the_other_ranks_speak_again_after_disable(ranks, tmp_path):
    source = """
import ddp_patch, os
print("one")
os.system("echo child one")
ddp_patch.disable()
print("two", flush=True)
os.system("echo child two")
with ddp_patch.enable():
    print("three")
print("four")
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert sorted(outcome.stdout[0].split("\n")) == sorted(
        ["one", "child one", "two", "child two", "three", "four", ""]
    )
    assert outcome.stdout[1] == "two\nchild two\nfour\n"


@pytest.mark.slow
def test_the_context_of_a_rank_ends_with_the_scripts_own_exception(ranks, tmp_path):
    source = """
import ddp_patch, sys, torch
ddp_patch.disable()
save = [torch.save]  # early bindings by name are patched as well
try:
    with ddp_patch.enable():
        assert torch.save is not save[0]
        raise KeyError("gone")
except KeyError as error:
    print(repr(error), torch.save is save[0], ddp_patch.is_enabled())
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stdout == ["KeyError('gone') True False\n"] * 2


DECORATED = f"""{MODEL}
ddp_patch.disable()  # of the command line, where there was one
before = vars(DataLoader)["__iter__"]

@ddp_patch.enable
def run(seed):
    _, loss = train(seed)
    return loss

def put_back():
    return vars(DataLoader)["__iter__"] is before
"""


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


@pytest.mark.slow
def test_a_decorated_function_learns_what_one_process_does(ranks, tmp_path):
    script = write(tmp_path, DECORATED + "print(run(0), put_back(), ddp_patch.is_enabled())\n")
    alone = ranks.script(script, 1).ok()
    outcome = ranks.script(script, 2).ok()
    assert alone.stdout[0].endswith(" True False\n")
    for text in outcome.stdout:
        assert text.endswith(" True False\n")
        assert numbers(text) == pytest.approx(numbers(alone.stdout[0]), rel=1e-9)


@pytest.mark.slow
def test_a_decorated_function_can_be_called_again_in_the_same_job(ranks, tmp_path):
    script = write(
        tmp_path,
        DECORATED + "for seed in range(3):\n    print(run(seed), put_back(), ddp_patch.is_enabled())\n",
    )
    alone = ranks.script(script, 1).ok()
    outcome = ranks.script(script, 2).ok()
    assert len(numbers(alone.stdout[0])) == 3
    for text in outcome.stdout:
        assert numbers(text) == pytest.approx(numbers(alone.stdout[0]), rel=1e-9)


@pytest.mark.slow
def test_a_decorated_function_can_be_called_again_while_its_last_model_is_kept(ranks, tmp_path):
    source = DECORATED.replace("_, loss = train(seed)\n    return loss", "return train(seed)")
    source += "kept = [run(seed) for seed in range(2)]\nprint(*(loss for _, loss in kept))\n"
    script = write(tmp_path, source)
    alone = ranks.script(script, 1).ok()
    outcome = ranks.script(script, 2).ok()
    assert len(numbers(alone.stdout[0])) == 2
    for text in outcome.stdout:
        assert numbers(text) == pytest.approx(numbers(alone.stdout[0]), rel=1e-9)


@pytest.mark.slow
def test_a_session_can_follow_a_session_in_the_same_job(ranks, tmp_path):
    source = f"""{MODEL}
import torch.distributed as dist
for _ in range(3):
    ddp_patch.disable()
    group = dist.group.WORLD
    ddp_patch.enable()
    assert dist.group.WORLD is group
print(train()[1])
"""
    script = write(tmp_path, source)
    outcome = ranks.script(script, 2).ok()
    alone = ranks.script(write(tmp_path, f"{MODEL}\nprint(train()[1])\n"), 1).ok()
    assert numbers(outcome.stdout[0]) == pytest.approx(numbers(alone.stdout[0]), rel=1e-9)


def test_enabling_ranks_with_other_options_half_way_is_refused(ranks, tmp_path):
    source = """
import ddp_patch, os, sys
ddp_patch.enable()
try:
    ddp_patch.enable(sync_batchnorm=False)
except ddp_patch.OptionError as error:
    os.write(2, str(error).encode())
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert "sync_batchnorm=True" in text
        assert "sync_batchnorm=False" in text


@pytest.mark.slow
def test_another_number_of_processes_than_the_launchers_is_refused(ranks, tmp_path):
    source = """
import ddp_patch, os, sys
ddp_patch.disable()
try:
    ddp_patch.enable(nproc=3)
except ddp_patch.OptionError as error:
    os.write(2, str(error).encode())
assert not ddp_patch.is_enabled()
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    for text in outcome.stderr:
        assert text.startswith("nproc=3, but the launcher started 2 ranks. Leave nproc out")


# --- the report of ranks ----------------------------------------------------------------------------------------------

REPORTED = f"""{MODEL}
model, _ = train()
(x,) = next(iter(DataLoader(TensorDataset(torch.ones(6, 4)), 6)))
values = torch.linalg.svdvals(x)  # gathered
"""
GATHERED_AT = f"script.py:{1 + REPORTED[: REPORTED.index('# gathered')].count(chr(10))}"


def test_the_report_names_what_was_distributed_and_what_was_gathered(ranks, tmp_path):
    source = REPORTED + "os.write(2, str(ddp_patch.report()).encode())\n"
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    text = outcome.stderr[0]
    assert text.startswith("ddp_patch report: 2 ranks, this one on the CPU")
    assert text.splitlines()[1:3] == [
        "  In short",
        "    nothing to change: no module is computed whole, no step gathers a batch",
    ]
    assert "torch.serialization.save: rank 0 writes" not in text
    assert "Net (25 parameters): the outermost module whose parameters are optimized" in text
    assert "DataLoader(TensorDataset, 22 rows, batch_size=8, num_workers=0): rows dealt" in text
    assert "    4 rows: 2 calls\n" in text
    assert "    3 rows: 1 call\n" in text
    assert re.search(rf"svdvals at {re.escape(GATHERED_AT)}: 1 call, 1 gather, \d+ bytes per rank\n", text), text
    assert re.search(r"all_reduce: \d+\.\d\d per optimizer step \(3 steps\), [\d,]+ bytes each\n", text), text
    assert re.search(r"gradient bucket: \d+\.\d\d per optimizer step \(3 steps\), [\d,]+ bytes each\n", text), text


def test_the_report_outlives_its_session(ranks, tmp_path):
    source = REPORTED + (
        "under = str(ddp_patch.report())\n"
        "ddp_patch.disable()\n"
        "sys.stderr.write(json.dumps(str(ddp_patch.report()) == under))\n"
    )
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert outcome.stderr == ["true", "true"]


def test_the_report_option_prints_once_on_stderr(ranks, tmp_path):
    outcome = ranks.script(write(tmp_path, REPORTED), 2, options=["--report"]).ok()
    assert outcome.stdout == ["", ""]
    assert outcome.stderr[0].startswith("ddp_patch report: 2 ranks, this one on the CPU")
    assert (
        "  In short\n    Net (25 parameters): its forward at most 2.00 times as fast as in one process\n"
        in outcome.stderr[0]
    )
    assert outcome.stderr[1] == ""


def test_the_report_says_when_nothing_was_distributed(ranks, tmp_path):
    source = "import ddp_patch, os, torch\ntorch.ones(3).sum()\nos.write(2, str(ddp_patch.report()).encode())\n"
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert "none: no batch reached a model, so every rank computed everything" in outcome.stderr[0]


def test_a_line_is_the_scripts_also_where_a_library_generated_code(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "settings_of_a_library.py").write_text(
        "from dataclasses import dataclass, field\nfrom ddp_patch.ledger import script_line\n"
        "@dataclass\nclass Settings:\n    line: str = field(default_factory=script_line)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    from settings_of_a_library import Settings

    line = sys._getframe().f_lineno + 1
    assert Settings().line == f"test_api.py:{line}"
    assert eval(compile("Settings().line", "<string>", "eval"), {"Settings": Settings}) == "<string>:1"


ASKS = "import json, ddp_patch\nddp_patch.enable({given})\n{again}print(json.dumps(ddp_patch.api.State.options.batch_dims))\n"


@pytest.mark.quick("options0")
@pytest.mark.parametrize("options", [[], ["--tail", "exact"]])
def test_a_script_asks_for_more_than_its_command_line(ranks, tmp_path, options):
    source = ASKS.format(given="batch_dims={'obs': 0}", again="ddp_patch.enable(batch_dims={'obs': 0})\n")
    assert ranks.script(write(tmp_path, source), 2, options=options).ok().stdout == ['{"obs": 0}\n', ""]


@pytest.mark.parametrize(
    ("options", "given", "again"),
    [
        (["--batch-dims", "obs=1"], "batch_dims={'obs': 0}", ""),  # the command line says something else
        ([], "batch_dims={'obs': 0}", "ddp_patch.enable(batch_dims={'obs': 1})\n"),
    ],
)
def test_two_values_of_an_option_are_refused(ranks, tmp_path, options, given, again):
    outcome = ranks.script(write(tmp_path, ASKS.format(given=given, again=again)), 2, options=options)
    assert outcome.codes == [1, 1]
    assert "half-way. Call ddp_patch.disable() before, or keep one of the two" in outcome.stderr[0]


def test_the_report_says_that_batches_without_a_model_are_on_rows(ranks, tmp_path):
    source = """
import os, ddp_patch, torch
from torch.utils.data import DataLoader, TensorDataset
sum(x.square().sum() for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), 4)).item()
os.write(2, str(ddp_patch.report()).encode())
"""
    outcome = ranks.script(write(tmp_path, source), 2).ok()
    assert "no model is split: no batch reached a module that is trained; what else your script" in outcome.stderr[0]
