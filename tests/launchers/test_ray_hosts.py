"""The real Ray Train on two hosts, which this machine plays: names, networks and disks of their own."""

import json
import os
import re
import time

import pytest
from conftest import PATIENCE
from launchers.hosts import FOLDER, finished, hosts, said
from launchers.test_hosts import alone, files, prepared
from launchers.test_ray import told
from launchers.together import python
from parity.test_scripts import compare_text

AT = "10.77.0.1:6379"
START = ("-m", "ray.scripts.scripts", "start", "--block", f"--temp-dir={FOLDER}/tmp/ray")
SMALL = ("--num-cpus=1", "--object-store-memory=80000000")
HEAD = ("--head", "--port=6379", "--include-dashboard=false", "--disable-usage-stats")
BEGIN = f"""
import json, os, runpy, socket, time
from pathlib import Path
import ray, ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
ray.init(address="{AT}")

def fit(function, storage):
    scaling = ScalingConfig(num_workers=2, resources_per_worker={{{{"CPU": 1}}}}, placement_strategy="STRICT_SPREAD")
    return TorchTrainer(function, scaling_config=scaling, run_config=RunConfig(storage_path=storage)).fit()
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Give a host with the head of a cluster, and one with a worker node of it, of one core each."""
    with hosts(tmp_path_factory.mktemp("nodes"), "alpha", "beta") as made:
        started = [
            _started(made[0], *HEAD, "--node-ip-address=10.77.0.1"),
            _started(made[1], f"--address={AT}", "--node-ip-address=10.77.0.2"),
        ]
        yield made
    finished(started)


def _started(host, *options):
    node = host.start(*python(*START, *SMALL, *options))
    end = time.monotonic() + PATIENCE
    while "Ray runtime started" not in os.pread(node.said[0].fileno(), 10_000, 0).decode():
        if node.poll() is not None or time.monotonic() > end:
            raise RuntimeError(said(finished([node], 0)))
        time.sleep(0.1)
    return node


def drive(nodes, program, **values):
    """Run a program that begins with BEGIN on the first host, as a driver of Ray's."""
    (nodes[0].folder / "home" / "drive.py").write_text((BEGIN + program).format(**values))
    return finished([nodes[0].start(*python(FOLDER / "home" / "drive.py"), RAY_DEDUP_LOGS="0")])[0]


# The folder is each host's own; the storage is seen from both, as Ray wants it.
TRAINS = """
def train():
    os.chdir({folder!r})
    import ddp_patch
    with ddp_patch.enable():
        runpy.run_path("script.py", run_name="__main__")
        ray.train.report({{"files": sorted(os.listdir("run"))}}, checkpoint=Checkpoint.from_directory("run"))
        print("rank 0 on", socket.gethostname())
    print("worker on", socket.gethostname())

result = fit(train, {storage!r})
with result.checkpoint.as_directory() as saved:
    Path({storage!r}, "seen.json").write_text(json.dumps([result.metrics["files"], sorted(os.listdir(saved))]))
"""


def test_workers_of_two_hosts_do_what_one_process_does_and_write_once(tmp_path, nodes):
    wanted = alone(tmp_path / "alone", "trains")
    storage = tmp_path / "storage"
    storage.mkdir()
    for host in nodes:
        prepared(host.folder / "trains", "trains")
    before = files(nodes[0].folder / "trains")
    *lines, name, first, second = told(drive(nodes, TRAINS, folder=f"{FOLDER}/trains", storage=str(storage)))
    compare_text("\n".join(lines) + "\n", wanted)
    assert {first, second} == {"worker on alpha", "worker on beta"}
    of_rank_0 = name.removeprefix("rank 0 on ")
    for host in nodes:
        left = files(tmp_path / "alone") if host.name == of_rank_0 else before
        assert files(host.folder / "trains") == left
    assert json.loads((storage / "seen.json").read_text()) == [["best.pt", "log.txt"]] * 2


FAILS = """
def fails():
    import ddp_patch
    ddp_patch.enable()
    import torch
    for step in range(10**9):
        if step == 20 and ddp_patch.rank() == {rank}:
            with ddp_patch.per_rank():
                Path({storage!r}, "failed").write_text(str(time.time()))
            raise KeyError("gone")  # here
        ddp_patch.deal(torch.zeros(8, 2)).sum().item()

try:
    fit(fails, {storage!r})
except ray.train.v2.api.exceptions.WorkerGroupError as error:
    Path({storage!r}, "error").write_text(str(error))
    print(time.time() - float(Path({storage!r}, "failed").read_text()))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_worker_of_one_host_raises_is_the_error_of_the_fit(tmp_path, nodes, rank):
    done = drive(nodes, FAILS, rank=rank, storage=str(tmp_path))
    assert done.returncode == 0, said([done])
    error = (tmp_path / "error").read_text()
    text = (nodes[0].folder / "home" / "drive.py").read_text().splitlines()
    here = next(number for number, line in enumerate(text, 1) if line.endswith("# here"))
    assert f"[Rank {rank} Error Snippet]" in error, error
    assert re.search(rf'drive\.py", line {here}, in fails\b.*KeyError: .gone', error, re.DOTALL), error
    assert float(done.stdout.split()[-1]) < 30
