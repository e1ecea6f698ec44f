"""The real Ray Train, on this host: ray of the extra ``launchers``."""

import re

from launchers.together import SCRIPTS, python, run
from parity.test_scripts import alone, compare_text

DRIVER = """
import os, runpy, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train():
    runpy.run_path({script!r}, run_name="__main__")

def joined():
    import ddp_patch
    ddp_patch.enable()

def launched():
    import ddp_patch
    ddp_patch.launch(train, nproc=2)
    print("came back", ddp_patch.world_size())

ray.init(num_cpus=3, include_dashboard=False)
scaling = ScalingConfig(num_workers={workers}, resources_per_worker={{"CPU": 1}})
TorchTrainer({function}, scaling_config=scaling, run_config=RunConfig(storage_path=os.getcwd())).fit()
"""
SAID = re.compile(r"^(?:\x1b\[\d+m)?\(RayTrainWorker[^)]*\)(?:\x1b\[0m)? ", re.MULTILINE)


def told(done):
    """What the workers printed; Ray writes their pid before each line."""
    return [SAID.sub("", line) for line in done.stdout.splitlines() if SAID.match(line)]


def test_a_worker_that_is_alone_launches_ranks_with_the_numbers_of_one_process(ranks, tmp_path):
    script = SCRIPTS / "mixup.py"
    (tmp_path / "drive.py").write_text(DRIVER.format(script=str(script), function="launched", workers=1))
    done = run(*python("drive.py"), cwd=tmp_path, RAY_DEDUP_LOGS="0")
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = alone(ranks, script).stdout[0]
    *lines, last = told(done)
    compare_text("\n".join(lines), wanted.rstrip("\n"))
    assert last == "came back 1"


def test_several_workers_are_refused_with_the_lines_to_write(tmp_path):
    (tmp_path / "drive.py").write_text(DRIVER.format(script="", function="joined", workers=2))
    done = run(*python("drive.py"), cwd=tmp_path)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "Ray Train started 2 processes (WORLD_SIZE=2), whose function runs in a thread of its own" in said
    assert "ddp_patch.launch(train, nproc=2)" in said
