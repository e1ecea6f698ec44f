"""What a new user sees first: that ranks run, what is wrong with a command, whose error it was."""

import os
import subprocess
import sys

import pytest
from conftest import PATIENCE

import ddp_patch

FAILS = """
import ddp_patch; ddp_patch.enable()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(9, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

def main(model):
    for x, y in DataLoader(TensorDataset(torch.randn(12, 4), torch.zeros(12).long()), 6):
        try:
            model(x)
        except RuntimeError as error:
            raise ValueError("as I thought") from error

main(Net())
"""
ANSWERS = (
    "import ddp_patch; ddp_patch.enable()\nddp_patch.disable()\nddp_patch.enable()\nprint(ddp_patch.world_size())\n"
)


def run(folder, *command, **variables):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DDP_PATCH_")}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={**environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.some("command1")
@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (["-m", "ddp_patch", "--nproc", "2", "script.py"], "ddp_patch"),
        (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"], "torchrun"),
    ],
)
def test_one_line_says_that_ranks_run(tmp_path, command, launcher):
    (tmp_path / "script.py").write_text(ANSWERS)
    done = run(tmp_path, *command)
    assert done.stdout == "2\n"
    said = [line for line in done.stderr.splitlines() if line.startswith("ddp_patch: ")]
    assert said == [f"ddp_patch: 2 ranks on the CPU, started by {launcher}."]
    assert "ddp_patch: " not in run(tmp_path, *command, DDP_PATCH_QUIET="1").stderr


TRAINS = """
import ddp_patch

ddp_patch.enable()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Compares(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        return torch.linalg.svd(x @ x.T)[0]


def train(model, batch_size=8):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(2 * batch_size, 4)), batch_size):
        model(x).square().mean().backward()
        optimizer.step()


"""
ROWS = "ddp_patch: Linear (10 parameters) is the model; each rank computes its rows."


@pytest.mark.slow
@pytest.mark.some("said1")
@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ("train(nn.Linear(4, 2)); train(nn.Linear(4, 2))", [ROWS]),
        ("train(nn.Linear(4, 2)); train(nn.Linear(4, 1))", [ROWS, ROWS.replace("10", "5")]),
        (
            "train(Compares())",
            ["ddp_patch: Compares (20 parameters) is the model; it runs function by function, as the report says "
             "(DDP_PATCH_REPORT=1)."],
        ),
        (
            "w = nn.Linear(4, 1); o = torch.optim.SGD(w.parameters(), 0.1); w.weight.sum().backward(); o.step()",
            ["ddp_patch: no batch has reached a model yet, so every rank computes everything: right, but not faster."],
        ),
        (
            "train(nn.Linear(4, 2), 1)",
            ["ddp_patch: every batch so far has fewer rows than there are ranks, so every rank computes all of it: right, "
             "but not faster."],
        ),
    ],
)  # fmt: skip
def test_a_line_says_what_became_the_model(tmp_path, trained, said):
    (tmp_path / "script.py").write_text(TRAINS + trained)
    done = run(tmp_path, "-m", "ddp_patch", "--nproc", "2", "script.py")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("ddp_patch: ")][1:] == said


@pytest.mark.long
def test_the_line_leaves_progress_bars_alone(tmp_path):
    bar = TRAINS.replace("in DataLoader(", "in tqdm.tqdm(DataLoader(").replace(", 8):", ", 8)):")
    (tmp_path / "script.py").write_text("import tqdm\n" + bar + "train(nn.Linear(4, 2))")
    done = run(tmp_path, "-m", "ddp_patch", "--nproc", "2", "script.py")
    assert ROWS in done.stderr.replace("\r", "\n").splitlines()
    quiet = run(tmp_path, "-m", "ddp_patch", "--nproc", "2", "script.py", DDP_PATCH_QUIET="1")
    assert "ddp_patch: " not in quiet.stderr


@pytest.mark.slow
def test_one_process_says_nothing(tmp_path):
    (tmp_path / "script.py").write_text(ANSWERS)
    done = run(tmp_path, "script.py")
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.slow
def test_an_option_after_the_script_is_named(tmp_path):
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:])\n")
    done = run(tmp_path, "-m", "ddp_patch", "script.py", "--nproc", "2")
    assert done.stdout == "['--nproc', '2']\n"
    assert done.stderr == (
        "python -m ddp_patch: --nproc stands after script.py, which gets it. For ddp_patch, write it before.\n"
    )
    done = run(tmp_path, "-m", "ddp_patch", "script.py", "--timeout", "2", "--quiet")
    assert done.stderr == ""  # scripts have these as well
    done = run(tmp_path, "-m", "ddp_patch", "--nproc", "1", "script.py", "--nproc", "2")
    assert done.stderr == ""  # who has found where options go means the script's


def test_a_near_miss_is_named(tmp_path):
    (tmp_path / "script.py").write_text(ANSWERS)
    done = run(tmp_path, "-m", "ddp_patch", "--nprocs", "2", "script.py")
    assert (done.returncode, done.stderr) == (
        2, "python -m ddp_patch: unknown option --nprocs. Did you mean '--nproc'?\n"
    )  # fmt: skip
    done = run(tmp_path, "script.py", DDP_PATCH_NPROCS="2")
    assert done.returncode == 1
    assert "OptionError: DDP_PATCH_NPROCS is set, and is no option. Did you mean 'DDP_PATCH_NPROC'?" in done.stderr


@pytest.mark.slow
def test_a_traceback_is_the_scripts(tmp_path):
    (tmp_path / "script.py").write_text(FAILS)
    done = run(tmp_path, "script.py", DDP_PATCH_NPROC="2", DDP_PATCH_QUIET="1")
    assert done.returncode == 1
    own = os.path.dirname(ddp_patch.__file__)
    assert own not in done.stderr
    assert "ValueError: as I thought" in done.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in done.stderr
    assert "frames of ddp_patch are left out; DDP_PATCH_TRACEBACK=1 shows them." in done.stderr
    done = run(tmp_path, "script.py", DDP_PATCH_NPROC="2", DDP_PATCH_TRACEBACK="1")
    assert own in done.stderr
    assert "left out" not in done.stderr


def test_what_is_public_is_what_is_shown():
    assert dir(ddp_patch) == sorted(ddp_patch.__all__)
    assert all(getattr(ddp_patch, name) is not None for name in ddp_patch.__all__)
