"""The real srun, sbatch and salloc, on one host: Debian's slurmctld, slurmd, slurm-client and munge."""

import json
import re
import time
from pathlib import Path

import pytest
from launchers.slurm import cluster
from launchers.test_mpi import ANSWERS
from launchers.together import SCRIPTS, leaving_no_note, python, run
from parity.test_scripts import alone, compare_text

LAUNCHERS = Path(__file__).parent.parent.parent / "docs" / "launchers.md"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as conf:
        yield {"SLURM_CONF": conf}


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("script", ["dataparallel_classifier", "mixup"])
def test_a_script_prints_what_it_prints_alone(ranks, tmp_path, slurm, nproc, script):
    wanted = alone(ranks, SCRIPTS / f"{script}.py")
    with leaving_no_note():
        done = run("srun", "-n", nproc, *python("-m", "ddp_patch", SCRIPTS / f"{script}.py"), cwd=tmp_path, **slurm)
    assert done.returncode == 0, done.stderr
    compare_text(done.stdout, wanted.stdout[0])


@pytest.mark.parametrize("options", [[], ["--mpi=pmi2"]], ids=["plain", "pmi2"])
@pytest.mark.sample
def test_the_line_joins_the_tasks_of_a_step(tmp_path, slurm, options):
    (tmp_path / "train.py").write_text(ANSWERS)
    done = run("srun", "-n", 2, *options, *python("train.py"), cwd=tmp_path, **slurm, DDP_PATCH_QUIET="0")
    assert (done.returncode, done.stdout) == (0, "2 []\n"), done.stderr
    assert "ddp_patch: 2 ranks on the CPU, started by srun." in done.stderr


def test_env_shows_one_table_of_all_tasks(slurm):
    done = run("srun", "-n", 2, *python("-m", "ddp_patch", "env", "--json"), **slurm)
    found = json.loads(done.stdout)
    assert (found["launcher"], found["world_size"], found["problem"]) == ("srun", 2, "")
    assert [its["set_by"]["srun"]["SLURM_PROCID"] for its in found["ranks"]] == ["0", "1"]


BATCH = """#!/bin/bash
#SBATCH --ntasks 2 --output said
echo shell "$({python} -c 'import ddp_patch; ddp_patch.enable(); print(ddp_patch.world_size())')"
echo own "$({python} -c 'import ddp_patch; ddp_patch.enable(nproc=2); print(ddp_patch.world_size())')"
srun {python} train.py
srun --ntasks 1 {python} -m torch.distributed.run --standalone --nproc-per-node 2 train.py
mpirun.openmpi --oversubscribe -np 2 {python} train.py
srun --ntasks 2 {python} -m torch.distributed.run --standalone --nproc-per-node 2 train.py 2> wrong
"""


def test_a_batch_script_is_one_process_and_its_steps_are_ranks(tmp_path, slurm):
    (tmp_path / "train.py").write_text(ANSWERS)
    (tmp_path / "job.sh").write_text(BATCH.format(python=python()[0]))
    done = run("sbatch", "--wait", "job.sh", cwd=tmp_path, **slurm)
    lines = (tmp_path / "said").read_text().splitlines()
    # Two tasks that each start a job of their own: refused by the ranks of both.
    assert done.returncode != 0
    wrong = (tmp_path / "wrong").read_text()
    assert "By torchrun, RANK=1, WORLD_SIZE=2 but srun says SLURM_STEP_NUM_TASKS=2" in wrong
    assert [line for line in lines if not line.startswith("srun: ")] == ["shell 1", "own 2", "2 []", "2 []", "2 []"], (
        wrong
    )


@pytest.mark.sample
def test_the_batch_script_of_the_documents_runs(tmp_path, slurm):
    """On this one node, for two tasks without accelerators."""
    (script,) = re.findall(r"^```text\n(#!/bin/bash\n.*?)^```$", LAUNCHERS.read_text(), re.DOTALL | re.MULTILINE)
    asked = "--nodes 2 --ntasks-per-node 4 --gpus-per-node 4"
    assert asked in script
    script = script.replace(asked, "--nodes 1 --ntasks-per-node 2 --output said").replace("python", python()[0])
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "train.py").write_text(ANSWERS)
    done = run("sbatch", "--wait", "job.sh", cwd=tmp_path, **slurm)
    assert (done.returncode, (tmp_path / "said").read_text()) == (0, "2 []\n"), done.stderr


def test_an_allocations_shell_is_one_process(tmp_path, slurm):
    (tmp_path / "train.py").write_text(ANSWERS)
    done = run("salloc", "-n", 2, *python("train.py"), cwd=tmp_path, **slurm)
    assert (done.returncode, done.stdout) == (0, "1 []\n"), done.stderr


def test_a_task_that_fails_ends_the_step(tmp_path, slurm):
    (tmp_path / "train.py").write_text(
        "import ddp_patch; ddp_patch.enable()\nimport torch\nif ddp_patch.rank() == 1: raise KeyError('gone')\n"
        "while True: ddp_patch.deal(torch.zeros(4, 2)).sum().item()\n"
    )
    began = time.monotonic()
    done = run("srun", "-n", 2, *python("train.py"), cwd=tmp_path, **slurm)
    assert done.returncode != 0
    assert "[rank 1] KeyError: 'gone'" in done.stderr
    assert time.monotonic() - began < 60
