"""Every run ends: cleanly if the script does, soon and with one traceback if it does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE, THOROUGH

pytestmark = pytest.mark.slow

TINY = Path(__file__).parent / "parity" / "scripts" / "tiny.py"


@pytest.mark.long
@pytest.mark.thorough
def test_every_run_at_three_ranks_ends_without_an_abort(ranks):
    for _ in range(50 if THOROUGH else 10):
        outcome = ranks.script(TINY, 3).ok()
        assert outcome.stderr == ["", "", ""]


def test_exit_code_of_the_script_is_kept(ranks):
    outcome = ranks.script(TINY, 2, "fail")
    assert outcome.codes == [3, 3]
    assert outcome.stdout[0].endswith("fail\n")


def gloo_threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if "gloo" in name]


def ends_holding_a_graph():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from ddp_patch.job.job import Job

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = []
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), 8):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append((x, loss, loss.item()))
    before = gloo_threads()
    Job.current.close()
    return before, gloo_threads()


@pytest.mark.parametrize("comm_hook", [None, "powersgd"])
def test_no_thread_of_torchs_lives_on_when_the_interpreter_ends(ranks, comm_hook):
    """One that asks for the GIL then would abort the process."""
    for before, after in ranks.call(ends_holding_a_graph, 2, enable={"comm_hook": comm_hook}).ok().results:
        assert before
        assert after == []


RAISING = """
import sys, time, ddp_patch, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def explode(where):
    if {condition}:
        raise ZeroDivisionError("over " + where)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), 5):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    explode("there")
    optimizer.step()
    print(loss.item())
"""


@pytest.mark.parametrize("condition", ["True", "ddp_patch.rank() == 1", "ddp_patch.rank() == 0"])
def test_a_raise_is_shown_once_and_ends_the_job_soon(ranks, tmp_path, condition):
    script = tmp_path / "raising.py"
    script.write_text(RAISING.format(condition=condition))
    outcome = ranks.script(script, 3)
    assert not outcome.ended, outcome.said()
    assert all(outcome.codes)
    said = "".join(outcome.stderr)
    assert said.count("ZeroDivisionError: over there") == 1, said
    assert said.count("Traceback (most recent call last)") == 1, said
    assert " of 3 raised this ZeroDivisionError; the job ends." in said
    if condition != "True":
        rank = int(condition[-1])
        assert f"rank {rank} of 3 raised" in outcome.stderr[rank]


def test_a_model_that_fails_on_one_rank_only_ends_the_job(ranks, tmp_path):
    script = tmp_path / "model_fails.py"
    script.write_text(
        RAISING.format(condition="False").replace(
            "model = torch.nn.Linear(4, 1)",
            "class Net(torch.nn.Linear):\n"
            "    def forward(self, x):\n"
            "        if torch.is_grad_enabled() and ddp_patch.rank() == 2:\n"
            "            raise KeyError('row')\n"
            "        return super().forward(x)\n"
            "model = Net(4, 1)",
        )
    )
    outcome = ranks.script(script, 3)
    assert not outcome.late
    assert all(outcome.codes)
    assert "".join(outcome.stderr).count("KeyError: 'row'") == 1


LEFT_OPEN = """
import csv, logging, torch
from torch import nn
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2).double()

    def forward(self, x):
        return self.layer(x)

class Trainer:
    def __del__(self):
        print("trainer deleted")
        with open("deleted.txt", "w") as stream:
            stream.write("deleted")

trainer = Trainer()
log = open("log.txt", "w")
rows = csv.writer(open("rows.csv", "w", newline=""))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(torch.ones(16, 5).double(), batch_size=8):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    log.write("step\\n")
    rows.writerow([1, 2])
"""
SPAWNS = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([float(i)])

def double(x):
    return 2 * x

if __name__ == "__main__":
    print(sum(b.sum().item() for b in DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context="spawn")))
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(double, range(4)))
"""


@pytest.mark.some("left open")
@pytest.mark.parametrize("script", [LEFT_OPEN, SPAWNS], ids=["left open", "spawns"])
def test_a_program_with_the_line_ends_and_starts_children_as_without_it(tmp_path, script):
    """A real program: what is deleted at its end, and children that import it, are not met in the tests' ranks."""
    found = []
    for name, line, launch in (
        ("alone", "", []),
        ("ranks", "import ddp_patch; ddp_patch.enable()\n", ["-m", "torch.distributed.run", "--nproc-per-node", "2"]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (tmp_path / f"{name}.py").write_text(line + script)
        command = [sys.executable, *launch, str(tmp_path / f"{name}.py")]
        # As on a terminal: what is printed while modules are deleted is lost in a buffer.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, {path.name: path.read_text() for path in folder.iterdir()}))
    assert found[1] == found[0]
    assert found[0][0]
