"""The real Ray Train, on this host: ray of the extra ``launchers``."""

import json
import re

import pytest
from launchers.together import SCRIPTS, python, run
from parity.test_scripts import alone, compare_text

BEGIN = """
import json, os, runpy, sys
from pathlib import Path
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray, ray.train, ray.train.collective, ray.train.torch
from ray.cluster_utils import Cluster
from ray.train import Checkpoint, DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def fit(function, workers, **scaling):
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}, **scaling)
    trainer = TorchTrainer(function, scaling_config=scaling, run_config=RunConfig(storage_path=os.getcwd()))
    return trainer.fit()

def start():
    ray.init(address="local", num_cpus=4, include_dashboard=False)
"""
SAID = re.compile(r"^(?:\x1b\[\d+m)?\(RayTrainWorker[^)]*\)(?:\x1b\[0m)? ", re.MULTILINE)


def drive(tmp_path, program, **env):
    """Run a program that begins with BEGIN, as a driver of Ray's."""
    (tmp_path / "drive.py").write_text(BEGIN + program)
    return run(*python("drive.py"), cwd=tmp_path, RAY_DEDUP_LOGS="0", PYTHONPATH=str(tmp_path), **env)


def told(done):
    """What the workers printed; Ray writes their pid before each line."""
    assert done.returncode == 0, done.stdout + done.stderr
    return [SAID.sub("", line) for line in done.stdout.splitlines() if SAID.match(line)]


def test_a_worker_that_is_alone_launches_ranks_with_the_numbers_of_one_process(ranks, tmp_path):
    script = SCRIPTS / "mixup.py"
    program = f"""
def train():
    runpy.run_path({str(script)!r}, run_name="__main__")

def launched():
    import ddp_patch
    ddp_patch.launch(train, nproc=2)
    print("came back", ddp_patch.world_size())

start()
fit(launched, 1)
"""
    *lines, last = told(drive(tmp_path, program))
    compare_text("\n".join(lines), alone(ranks, script).stdout[0].rstrip("\n"))
    assert last == "came back 1"


# Each way to write it, on 2 and 3 workers; fits of one session that follow each other.
SEVERAL = """
def plain():
    import ddp_patch
    ddp_patch.enable()
    runpy.run_path({script!r}, run_name="__main__")

def context():
    import ddp_patch
    with ddp_patch.enable():
        runpy.run_path({script!r}, run_name="__main__")
    print("out of it", ddp_patch.world_size() > 1, os.environ["WORLD_SIZE"])

start()
fit(plain, 2)
fit(context, 3)
"""


@pytest.mark.parametrize("name", ["mixup", "early_stopping", "token_mean"])
def test_workers_print_what_one_process_prints(ranks, tmp_path, name):
    script = SCRIPTS / f"{name}.py"
    lines = told(drive(tmp_path, SEVERAL.format(script=str(script))))
    *lines, first, second, third = lines  # behind the block, each worker is one of three
    assert [first, second, third] == ["out of it True 3"] * 3
    wanted = alone(ranks, script).stdout[0].rstrip("\n")
    compare_text("\n".join(lines), f"{wanted}\n{wanted}")


# As Ray's guide has it, for one worker and for several: what each helper gives, a log, and a checkpoint.
GUIDE = """
import tempfile
import torch
from torch.utils.data import DataLoader, TensorDataset

def train(config):
    import ddp_patch
    if config["enables"]:
        ddp_patch.enable()
    torch.manual_seed(3)
    x = torch.randn(50, 4, dtype=torch.float64)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=8, shuffle=True, num_workers=1))
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    model = ray.train.torch.prepare_model(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    context = ray.train.get_context()
    ranks = context.get_world_size(), context.get_world_rank(), context.get_local_rank(), context.get_node_rank()
    print(type(model).__name__, type(loader.sampler).__name__, ray.train.torch.get_device(), ranks)
    log = f"{config['folder']}/log.txt"
    for epoch in range(3):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        total = 0.0
        for a, b in loader:
            loss = torch.nn.functional.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(a)
        with open(log, "a") as stream:
            stream.write(f"{epoch} {total:.10f}\\n")
        metrics = {"loss": total / len(data), "epoch": epoch}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint if context.get_world_rank() == 0 else None)
    with ray.train.get_checkpoint().as_directory() if ray.train.get_checkpoint() else tempfile.TemporaryDirectory() as d:
        print(os.listdir(d))
    print(ray.train.collective.broadcast_from_rank_zero("from rank 0"))
    print(open(log).read().split())

def tried(workers, enables):
    folder = os.path.abspath(f"with-{workers}")
    os.mkdir(folder)
    scaling = ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1})
    config = {"folder": folder, "enables": enables}
    run = RunConfig(storage_path=folder)
    result = TorchTrainer(train, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    with result.checkpoint.as_directory() as saved:
        names = sorted(os.listdir(saved))
        weights = [value.double().sum().item() for value in torch.load(f"{saved}/model.pt").values()]
    log = Path(f"{folder}/log.txt").read_text()
    return [result.metrics["loss"], result.metrics["epoch"], names, weights, log, len(result.best_checkpoints)]

start()
Path("tried.json").write_text(json.dumps([tried(1, False), tried(2, True), tried(3, True)]))
"""


@pytest.mark.sample
def test_helpers_reports_and_checkpoints_are_those_of_one_worker(tmp_path):
    lines = told(drive(tmp_path, GUIDE))
    wanted, *others = json.loads((tmp_path / "tried.json").read_text())
    for loss, epoch, names, weights, log, checkpoints in others:
        assert [epoch, names, checkpoints] == [wanted[1], wanted[2], wanted[5]] == [2, ["model.pt"], 3]
        assert loss == pytest.approx(wanted[0], rel=1e-9)
        assert weights == pytest.approx(wanted[3], rel=1e-9)
        compare_text(log, wanted[4])
    each = len(lines) // 3
    assert lines[0] == "Sequential RandomSampler cpu (1, 0, 0, 0)"
    for first in (each, 2 * each):
        compare_text("\n".join(lines[first : first + each]), "\n".join(lines[:each]))


FAILS = """
import torch

def step(x):
    net = torch.nn.Linear(2, 1)
    net(x).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()

def one():
    import ddp_patch
    with ddp_patch.enable():
        for index in range(4):
            if index == 2 and ddp_patch.rank() == 1:
                raise ValueError("of one worker")
            step(torch.ones(8, 2))

def plain():
    import ddp_patch
    ddp_patch.enable()
    one()

def alike():
    import ddp_patch
    with ddp_patch.enable():
        step(torch.ones(8, 2))
        raise ValueError("of all workers")

def parted():
    import ddp_patch
    ddp_patch.enable()
    if ddp_patch.rank() == 0:
        step(torch.ones(8, 2))
    with open("written.txt", "w") as stream:
        stream.write("written")

def shards():
    import ddp_patch
    ddp_patch.enable()
    ray.train.get_dataset_shard("train")

start()
for function in ({functions}):
    try:
        fit(function, 2)
    except Exception as error:
        print("FIT", function.__name__, type(error).__name__, repr(str(error)))
"""


def fits(tmp_path, *functions):
    """What each fit raises, by the name of its function."""
    done = drive(tmp_path, FAILS.replace("{functions}", ", ".join((*functions, ""))))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("FIT")}
    assert set(found) == {*functions}, done.stdout + done.stderr
    assert all(line.split()[2] == "WorkerGroupError" for line in found.values()), found
    assert "actor died" not in str(found).lower()
    return found


def test_what_one_worker_raises_is_the_error_of_the_fit(tmp_path):
    for said in fits(tmp_path, "one", "plain").values():
        assert "[Rank 1 Error Snippet]" in said
        assert "ValueError: of one worker" in said
        assert "drive.py" in said


def test_what_all_workers_raise_and_ranks_that_part_are_errors_of_the_fit(tmp_path):
    found = fits(tmp_path, "alike", "parted", "shards")
    assert "ValueError: of all workers" in found["alike"]
    # Ray leaves out the middle, and the name; where the ranks parted is at the end.
    assert re.search(r"> +\d+ +a backward.* open\(\S+written\.txt\S+ +drive\.py:\d+", found["parted"])
    assert "gives each worker rows of its own" in found["shards"]


NODES = """
import ddp_patch

def where():
    node = ray.get_runtime_context().get_node_id()
    with ddp_patch.enable():
        runpy.run_path({script!r}, run_name="__main__")
        with ddp_patch.per_rank():
            Path(f"{{{folder!r}}}/{{ddp_patch.rank()}}").write_text(node)

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 2, "include_dashboard": False}})
cluster.add_node(num_cpus=2)
ray.init(address=cluster.address)
fit(where, 2, placement_strategy="STRICT_SPREAD")
ray.shutdown()
cluster.shutdown()
"""


def test_workers_of_two_nodes(ranks, tmp_path):
    script = SCRIPTS / "mixup.py"
    lines = told(drive(tmp_path, NODES.format(script=str(script), folder=str(tmp_path))))
    compare_text("\n".join(lines), alone(ranks, script).stdout[0].rstrip("\n"))
    assert len({(tmp_path / str(rank)).read_text() for rank in range(2)}) == 2


ENV = """
import subprocess

def env():
    done = subprocess.run([sys.executable, "-m", "ddp_patch", "env"], capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")

start()
fit(env, 2)
"""


def test_env_in_a_worker_names_ray_train(tmp_path):
    lines = told(drive(tmp_path, ENV))
    assert "Ray Train started 2 ranks on 1 host." in lines
    assert any(re.match(r" *1 .* 1 of 2 .* cpu", line) for line in lines)
