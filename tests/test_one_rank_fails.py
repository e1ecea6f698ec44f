"""Failures of one rank's rows: never a hang, and an error on every rank that says what happened where."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, ddp_patch
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

where, catches = {where!r}, {catches!r}
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
done = []
is_last = ddp_patch.rank() == ddp_patch.world_size() - 1


class Rows(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if where == "dataset" and index == 7:
            raise ValueError("a bad row")
        return torch.tensor([1.0, index]), index % 3


def fails_in_backward(x):
    def fail(gradient):
        if is_last:
            raise ValueError("a bad gradient")

    x = x.clone().requires_grad_()
    x.register_hook(fail)
    return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        x = fails_in_backward(x) if len(done) == 1 and where == "backward" else x
        if len(done) == 1 and (where == "every rank" or (where == "one rank" and is_last)):
            raise ValueError("a bad value")
        return self.layer(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.001)
batches = iter(DataLoader(Rows(), 4))
while True:
    try:
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
    except StopIteration:
        break
    except ValueError:
        done.append("skipped")
        if not catches:
            raise
        continue
    except RuntimeError:
        done.append("skipped")
        if not catches:
            raise
        continue
    optimizer.step()
    done.append(round(loss.item(), 4))
print(done)
"""


def write(tmp_path, where, catches):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(where=where, catches=catches))
    return script


@pytest.mark.parametrize("where", ["dataset", "one rank", "backward"])
@pytest.mark.parametrize("catches", [False, True])
def test_a_failure_of_some_rows_ends_the_job_with_its_place(ranks, tmp_path, where, catches):
    outcome = ranks.script(write(tmp_path, where, catches), 2)
    assert not outcome.late
    assert outcome.codes == [1, 1]
    said = "".join(outcome.stderr)
    assert said.count("the job ends.") == 1, said
    assert "LockstepError: train.py:" in said
    place = {"dataset": "batch 2 of loader", "one rank": "of Net (9 parameters)", "backward": "backward 2 (after "}
    assert place[where] in said
    assert "raised ValueError (a bad" in said
    assert "rows of rank 1" in said


def test_a_failure_of_every_rank_is_the_scripts_own_to_catch(ranks, tmp_path):
    script = write(tmp_path, "every rank", True)
    alone = ranks.script(script, 1).ok().stdout[0]
    assert "skipped" in alone
    assert ranks.script(script, 3).ok().stdout == [alone, "", ""]


def nonfinite_rows():
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.ones(8, 2, dtype=torch.float64)
    x[7, 1] = float("nan")
    model = nn.Linear(2, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = []
    for (rows,) in DataLoader(TensorDataset(x), 4):
        loss = F.mse_loss(model(rows), torch.zeros(len(rows), 1, dtype=torch.float64))
        if not torch.isfinite(loss):
            said.append("stop")
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(round(loss.item(), 6))
    return said


def test_a_loss_that_is_not_finite_for_one_ranks_rows_is_seen_by_all(ranks):
    wanted = nonfinite_rows()
    assert wanted[-1] == "stop"
    assert ranks.call(nonfinite_rows, 2).ok().results == [wanted, wanted]


def bad_target():
    import torch
    import torch.nn.functional as F

    import ddp_patch

    x = ddp_patch.shard_batch(torch.zeros(8, 3))
    y = ddp_patch.shard_batch(torch.tensor([0, 1, 2, 0, 1, 2, 7, 0]))
    try:
        F.cross_entropy(x, y)
    except IndexError:
        return "went on"
    except ddp_patch.LockstepError as error:
        return str(error)


def test_a_target_out_of_range_in_one_ranks_rows_cannot_be_skipped(ranks):
    outcome = ranks.call(bad_target, 2)
    assert not outcome.late
    assert "went on" not in outcome.results
    said = "".join(outcome.stderr) + str(outcome.results)
    assert "cross_entropy (operation" in said
    assert "Target 7 is out of bounds" in said


COMPUTES = """
import ddp_patch
ddp_patch.enable()
import os, time
import torch
torch.save(1, "met.pt")  # all ranks come here
if ddp_patch.rank() == 1:
    raise ValueError("a bad value")
while True:  # computes, and needs nobody
    torch.ones(300, 300) @ torch.ones(300, 300)
"""


@pytest.mark.some("1")
@pytest.mark.parametrize("hosts", [1, 3])
def test_ranks_that_compute_end_where_no_launcher_ends_them(tmp_path, hosts):
    """Started one by one, as srun without --kill-on-bad-exit and Hydra leave them."""
    script = tmp_path / "train.py"
    script.write_text(("" if hosts == 1 else "import several_hosts\n") + COMPUTES)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(Path(__file__).parent)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert all(process.returncode > 0 for process in processes), [process.returncode for process in processes]
    assert "".join(said).count("Traceback") == 1, "\n=====\n".join(said)
    assert "ValueError: a bad value" in said[1]


ENDS_BEFORE = """
import os
if os.environ["PMI_RANK"] == %r:
    raise ValueError("a bad value")
import ddp_patch
ddp_patch.enable()
"""
STARTS = """
import os, subprocess, sys
sized = {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
each = [dict(PMI_RANK=str(rank), MPI_LOCALRANKID=str(rank)) for rank in range(3)]
ranks = [
    subprocess.Popen([sys.executable, "train.py"], env={**os.environ, **sized, **one}, stderr=open(f"said.{place}", "w"))
    for place, one in enumerate(each)
]
print([process.wait() for process in ranks])
"""


ENDS_WITHIN = """
import os, time
import ddp_patch
import ddp_patch.job.job
if os.environ["PMI_RANK"] == %r:
    ddp_patch.job.job.connect = lambda *_: os._exit(3)
else:
    ddp_patch.job.job.reaching.choose_interface = lambda *_: time.sleep(%s)
ddp_patch.enable()
"""


@pytest.mark.some("0-no address")
@pytest.mark.parametrize("address", [{}, {"MASTER_ADDR": "127.0.0.1"}], ids=["no address", "an address"])
@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_rank_that_ends_before_it_comes_ends_the_others_whose_launcher_lets_them_wait(tmp_path, rank, address):
    """As Hydra does, after whose process this one is named."""
    done = started_by_hydra(tmp_path, ENDS_BEFORE % rank, address)
    assert done.stdout == "[1, 1, 1]\n", done
    gone = rf"ranks? (?:\d, )*{rank}(?:, \d)*"  # a slow one may be named as well
    named = rf"(does not wait for {gone}, which ended before|in vain for {gone}, of 3, which did not come)"
    assert len(re.findall(rf"LaunchError: Rank \d .*{named}", done.stderr)) == 2, done.stderr
    assert done.stderr.count("ValueError: a bad value") == 1


@pytest.mark.some("0-later")
@pytest.mark.parametrize("later", [0, 4], ids=["at once", "later"])  # seconds, after which the others come
@pytest.mark.parametrize("rank", ["0", "2"])
def test_a_rank_that_ends_as_the_ranks_are_connected_ends_the_others(tmp_path, rank, later):
    done = started_by_hydra(tmp_path, ENDS_WITHIN % (rank, later))
    assert all(code != "0" for code in re.findall(r"\d+", done.stdout)), done
    assert done.stdout.count("3") == 1, done


def started_by_hydra(tmp_path, script, address=(), starts=STARTS):
    address = dict(address)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "start.py").write_text(starts)
    if address:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            address = {**address, "MASTER_PORT": str(listening.getsockname()[1])}
    (tmp_path / "hydra_pmi_proxy").symlink_to(sys.executable)
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **address}
    command = [str(tmp_path / "hydra_pmi_proxy"), "start.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    done.stderr += "".join(path.read_text() for path in sorted(tmp_path.glob("said.*")))  # one after the other
    return done


def test_ranks_whose_sets_of_strings_have_other_orders_are_refused(tmp_path):
    starts = STARTS.replace("PMI_RANK=str(rank)", "PMI_RANK=str(rank), PYTHONHASHSEED=str(rank // 2)")
    done = started_by_hydra(tmp_path, "import ddp_patch\nddp_patch.enable()\n", starts=starts)
    assert done.stdout == "[1, 1, 1]\n", done
    assert done.stderr.count("LaunchError: The ranks do not run the same: the order of sets of strings") == 3, (
        done.stderr
    )
    assert "export PYTHONHASHSEED=0" in done.stderr
