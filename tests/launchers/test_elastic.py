"""torchrun's elastic agents, up to four, which come and go while a script trains that resumes from its own checkpoint."""

import itertools
import json
import os
import signal
import socket
import subprocess
import time

import torch
from conftest import PATIENCE
from launchers.together import environment, python, run
from test_failures import processes_of
from test_restarts import assert_alike

SCRIPT = """
import ddp_patch
ddp_patch.enable()
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rows = torch.randn(40, 6)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), 10, shuffle=True)
model = nn.DataParallel(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
losses, sizes = [], []
if os.path.exists("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    losses, sizes = last["losses"], last["sizes"]
while len(losses) != int(sys.argv[1]) and not os.path.exists("enough"):
    torch.manual_seed(len(losses))
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if os.path.exists("fail"):
            with ddp_patch.per_rank():
                if ddp_patch.rank() == ddp_patch.world_size() - 1:
                    os.remove("fail")
                    raise ValueError("once")
        optimizer.step()
    losses.append(loss.item())
    sizes.append(ddp_patch.world_size())
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**states, "losses": losses, "sizes": sizes}, "last.pt")
with open("losses.json", "w") as file:
    json.dump(losses, file)
print("done with", ddp_patch.world_size(), "ranks")
"""
# As docs/launchers.md has it.
ELASTIC = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Agents:
    """Of one job, in one folder; the first one has the store of the rendezvous."""

    def __init__(self, folder, restarts=3):
        self.folder, self.started, self._restarts = folder, [], restarts
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._at = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "train.py").write_text(SCRIPT)

    def start(self):
        number = len(self.started)
        options = ["--nnodes=1:4", "--nproc-per-node=1", f"--max-restarts={self._restarts}", "--rdzv-id=elastic"]
        options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={self._at}"]
        options += [f"--rdzv-conf=is_host={int(number == 0)},last_call_timeout=3,join_timeout=60"]
        with (self.folder / f"out.{number}").open("w") as out, (self.folder / f"error.{number}").open("w") as error:
            agent = subprocess.Popen(
                python("-m", "torch.distributed.run", *options, "train.py", -1),
                cwd=self.folder,
                env={**environment(), **ELASTIC, "FAILURE_OF": self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
            )
        self.started.append(agent)
        return agent

    def until(self, holds):
        """Wait until something holds of how many ranks each epoch had, so far."""
        end = time.monotonic() + PATIENCE
        last = self.folder / "last.pt"
        while not (last.exists() and holds(torch.load(last)["sizes"])):
            assert time.monotonic() < end, self.said()
            assert self.started[0].poll() is None, self.said()
            time.sleep(0.1)

    def fail(self):
        """Have a rank fail, and wait until all go on."""
        (self.folder / "fail").touch()
        self.until(lambda sizes: not (self.folder / "fail").exists())
        done = len(torch.load(self.folder / "last.pt")["sizes"])
        self.until(lambda sizes: len(sizes) > done)

    def enough(self):
        """Have the script end; give the codes of all agents, once they have."""
        (self.folder / "enough").touch()
        return self.ended()

    def ended(self):
        end = time.monotonic() + PATIENCE
        return [agent.wait(max(end - time.monotonic(), 0.1)) for agent in self.started]

    def left(self):
        return processes_of(self._mark)

    def kill(self):
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        for agent in self.started:
            agent.wait(PATIENCE)

    def said(self):
        paths = sorted(self.folder.glob("out.*")) + sorted(self.folder.glob("error.*"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in paths)


def undisturbed(folder, epochs):
    """Give the losses of one process to which nothing happens."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.replace("enable()", "enable(nproc=1)"))
    done = run(*python("train.py", epochs), cwd=folder)
    assert done.returncode == 0, done.stderr
    return losses(folder)


def losses(folder):
    return list(enumerate(json.loads((folder / "losses.json").read_text())))


def test_agents_come_and_go_and_the_numbers_are_those_of_one_process(tmp_path):
    """Two begin, a rank fails, a third and a fourth come, one is killed and one is asked to end."""
    agents = Agents(tmp_path)
    try:
        agents.start(), agents.start()
        agents.until(lambda sizes: sizes[-1] == 2)
        agents.fail()  # from now on, agents that come have restarted less often than those that are there
        agents.start()
        agents.until(lambda sizes: sizes[-1] == 3)
        agents.start()
        agents.until(lambda sizes: sizes[-1] == 4)
        agents.started[1].kill()
        agents.until(lambda sizes: sizes[-1] == 3)
        agents.started[2].terminate()
        agents.until(lambda sizes: sizes[-1] == 2)
        codes = agents.enough()
        assert [code == 0 for code in codes] == [True, False, False, True], agents.said()
        assert agents.left() == []
        sizes = torch.load(tmp_path / "last.pt")["sizes"]
        assert [size for size, _ in itertools.groupby(sizes) if size > 1] == [2, 3, 4, 3, 2], sizes
        assert "".join(path.read_text() for path in tmp_path.glob("out.*")) == "done with 2 ranks\n"
    finally:
        agents.kill()
    assert_alike(losses(tmp_path), undisturbed(tmp_path / "alone", len(sizes)))


def test_a_failure_after_the_last_restart_ends_all_agents(tmp_path):
    agents = Agents(tmp_path, restarts=1)
    try:
        agents.start(), agents.start(), agents.start()
        agents.until(lambda sizes: sizes[-1] == 3)
        agents.fail()
        began = time.monotonic()
        (tmp_path / "fail").touch()
        codes = agents.ended()
        assert time.monotonic() - began < 60
        assert codes == [1, 1, 1], agents.said()
        assert agents.left() == []
        assert agents.said().count("ValueError: once") > 1, agents.said()
    finally:
        agents.kill()
