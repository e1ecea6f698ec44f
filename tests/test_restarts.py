"""A script that resumes from its own checkpoint is restarted by its launcher, on as many ranks as there are."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import ddp_patch
ddp_patch.enable()
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rows = torch.randn(40, 6)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 10)
model = nn.DataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
first = 0
if os.path.exists("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    first = last["epoch"]
for epoch in range(first, 8):
    torch.manual_seed(epoch)
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if epoch == 4 and not os.path.exists("failed"):
            with ddp_patch.per_rank():
                if ddp_patch.rank() == ddp_patch.world_size() - 1:
                    open("failed", "w").close()
                    {fails}
                time.sleep(2)
        optimizer.step()
    with open("losses.txt", "a") as log:
        log.write(f"{{epoch}} {{loss.item():.12f}}\\n")
    torch.save({{"epoch": epoch + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}}, "new.pt")
    os.replace("new.pt", "last.pt")  # a launcher may stop it at any time, and half a file cannot be read
    time.sleep({sleep})
print("done with", ddp_patch.world_size(), "ranks")
"""

FAILS = {"raises": "raise ValueError('once')", "killed": "os.kill(os.getpid(), signal.SIGKILL)"}


def environ():
    env = {key: value for key, value in os.environ.items() if not key.startswith("DDP_PATCH_")}
    # torch 2.13 lets ranks share the store of the rendezvous, which a group that grows cannot do.
    return env | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options, "train.py"]


def losses(folder):
    return [line.split() for line in (folder / "losses.txt").read_text().splitlines()]


def undisturbed(folder):
    """Give the losses of one process to which nothing happens."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.format(fails="pass", sleep=0).replace("enable()", "enable(nproc=1)"))
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=environ(), check=True, capture_output=True)
    return losses(folder)


def assert_alike(found, expected):
    assert [epoch for epoch, _ in found] == [epoch for epoch, _ in expected]
    for (epoch, own), (_, whole) in zip(found, expected, strict=True):
        assert abs(float(own) - float(whole)) < 1e-10, epoch


@pytest.mark.some("raises-2")
@pytest.mark.parametrize(("how", "nproc"), [("raises", 2), ("killed", 3)])
def test_torchrun_restarts_a_script_that_resumes(tmp_path, how, nproc):
    expected = undisturbed(tmp_path / "alone")
    (tmp_path / "train.py").write_text(SCRIPT.format(fails=FAILS[how], sleep=0))
    command = torchrun("--standalone", f"--nproc-per-node={nproc}", "--max-restarts=2")
    done = subprocess.run(command, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "failed").exists()
    assert f"done with {nproc} ranks" in done.stdout
    assert_alike(losses(tmp_path), expected)


@pytest.mark.long
@pytest.mark.parametrize("grows", [False, True])
def test_an_elastic_job_goes_on_with_fewer_or_more_ranks(tmp_path, grows):
    """Two agents of a rank each; one leaves, or comes later. The other one's ranks are started again."""
    expected = undisturbed(tmp_path / "alone")
    (tmp_path / "train.py").write_text(SCRIPT.format(fails="pass", sleep=1.0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=elastic"]
    options += [f"--rdzv-endpoint=127.0.0.1:{port}"]
    agents = []

    def start():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        host = [f"--rdzv-conf=is_host={int(not agents)},last_call_timeout=3,join_timeout=60"]
        agents.append(subprocess.Popen(torchrun(*options, *host), cwd=tmp_path, env=environ(), text=True, **pipes))

    try:
        start()
        if not grows:
            start()
        await_epochs(tmp_path, 2, agents)
        if grows:
            start()
        else:
            agents[1].send_signal(signal.SIGTERM)
        said = "\n".join(text for agent in agents for text in agent.communicate(timeout=180))
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.kill()
                agent.communicate()
    assert agents[0].returncode == 0, said
    assert f"done with {2 if grows else 1} ranks" in said, said
    assert_alike(list(dict(losses(tmp_path)).items()), expected)  # an epoch that was cut short came again


def test_ranks_of_agents_that_have_restarted_more_or_less_often_meet(tmp_path):
    """Each agent of an elastic job counts its own restarts; one that came later has had none."""
    (tmp_path / "train.py").write_text(
        "import ddp_patch, torch\nddp_patch.enable(timeout=30)\nprint(ddp_patch.deal(torch.ones(4)).sum().item())"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "elastic"}
    told |= {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    ranks = []
    for rank, restarts in enumerate("10"):
        env = {**environ(), **told, "RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": restarts}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        ranks.append(subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, env=env, text=True, **pipes))
    said = [rank.communicate(timeout=180) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [out for out, _ in said] == ["4.0\n", ""]


def await_epochs(folder, count, agents):
    end = time.monotonic() + 90
    while not (folder / "losses.txt").exists() or len(losses(folder)) < count:
        assert time.monotonic() < end
        assert all(agent.poll() is None for agent in agents)
        time.sleep(0.1)


@pytest.mark.long
def test_what_a_platform_tells_torchrun_is_not_for_our_agent(tmp_path):
    """A failing script is not started again, and its output is where one process has it."""
    text = "import ddp_patch\nddp_patch.enable(nproc=2)\nimport os\nprint(os.environ['PET_TEE'])\nraise SystemExit(3)\n"
    (tmp_path / "train.py").write_text(text)
    told = {"PET_MAX_RESTARTS": "2", "PET_REDIRECTS": "1", "PET_TEE": "3", "PET_LOG_DIR": str(tmp_path / "logs")}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env={**environ(), "DDP_PATCH_QUIET": "1", **told},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "3\n"), done.stderr
    assert not (tmp_path / "logs").exists()
