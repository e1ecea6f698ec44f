"""One rank of three fails under mpirun and srun, which end the others in ways of their own, or not at all (Hydra)."""

import os
import re
import signal
import subprocess
import time

import pytest
from failures import KINDS
from launchers.slurm import cluster
from launchers.together import MPI, MPICH, OPEN_MPI, environment, python, run
from test_failures import fails
from test_signals import FLAG, LIMIT, START, TRAINING

SOME = (
    *("raises in forward", "is killed in forward", "is killed between two steps", "is asked to end", "is stopped"),
    *("calls sys.exit", "ends with code 0 by os._exit", "leaves the loop", "is killed as it saves"),
)
TRIED = [kind for kind in KINDS if kind.name in SOME]
LOSES = next(
    kind for kind in KINDS if kind.name == "loses its launcher"
)  # SLURM's own, of a task, is for SLURM to see to
MPIRUN = pytest.mark.parametrize(
    ("mpirun", "at_once"),
    # Hydra names the process, its host and the signal, and has killed the other ranks by then (MPICH 4.0).
    [(OPEN_MPI, None), (MPICH, "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")],
    ids=["Open MPI", "MPICH"],
)


def failing(kinds):
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name.replace(" ", "-"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as conf:
        yield {"SLURM_CONF": conf}


@failing([*TRIED, LOSES])
@MPIRUN
def test_a_rank_of_mpirun_that_fails_ends_the_job_at_once_and_leaves_nothing(tmp_path, mpirun, at_once, kind):
    fails(kind, 0, tmp_path, at_once, command=[*mpirun, "3", *python("train.py")], **MPI)


@failing(TRIED)
def test_a_task_of_srun_that_fails_ends_the_job_at_once_and_leaves_nothing(tmp_path, slurm, kind):
    fails(kind, 0, tmp_path, command=["srun", "-n", "3", *python("train.py")], **slurm)


ENDS_BEFORE = """
import os, sys
if sys.argv[2] == (os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or os.environ["SLURM_PROCID"]):
    sys.exit(int(sys.argv[1]))
import ddp_patch
ddp_patch.enable()
"""


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("start", [["srun", "-n"], OPEN_MPI, MPICH], ids=["srun", "Open MPI", "MPICH"])
@pytest.mark.sample
def test_a_rank_that_ends_before_it_comes_ends_the_others(tmp_path, slurm, start, rank, code):
    (tmp_path / "train.py").write_text(ENDS_BEFORE)
    done = run(*start, 3, *python("train.py", code, rank), cwd=tmp_path, **slurm)
    assert done.returncode, done
    named = rf"(does not wait for rank (?:\d, )*{rank}(?:, \d)*, which ended before|in vain for rank {rank}, of 3, which did not come)"
    said = len(re.findall(rf"LaunchError: Rank \d .*{named}", done.stderr))
    least = 2 if start is not OPEN_MPI else code == 0  # which ends the others with the first that has failed
    assert least <= said <= 2, done.stderr


STOPS = START.replace("%s", "") + FLAG
ENDS = 'steps = train()\nhere(f"ended after {steps}")\nprint("saved", flush=True)\n'


def handled(folder, command, name, send, **env):
    """What each of two ranks notes of a signal that its script handles, which is sent once all are at work."""
    (folder / "script.py").write_text(f"{STOPS}signal.signal(signal.{name}, stop)\n{TRAINING}{ENDS}")
    with (folder / "out").open("w") as out:
        job = subprocess.Popen(
            [*command, "2", *python("script.py")],
            cwd=folder,
            env={**environment(), **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            end = time.monotonic() + LIMIT
            while "ready" not in (said := (folder / "out").read_text()):
                assert time.monotonic() < end, said
                time.sleep(0.1)
            send(job)
            job.wait(LIMIT)
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(LIMIT)
    said = (folder / "out").read_text()
    assert said.count("saved") == 1, said
    return [(folder / f"rank{rank}.txt").read_text().splitlines()[1:] for rank in range(2)]


def assert_handled_once(said, name):
    assert said[0] == said[1], said
    assert [line.split()[:2] for line in said[0]] == [["handled", name], ["ended", "after"]]


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_of_the_queue_is_handled_once_by_every_task_after_the_same_step(tmp_path, slurm, name):
    def cancel(_):
        command = ["scancel", f"--signal={name.removeprefix('SIG')}", "--name=signalled"]
        subprocess.run(command, env={**os.environ, **slurm}, check=True)

    srun = ["srun", "--job-name=signalled", "-n"]
    assert_handled_once(handled(tmp_path, srun, name, cancel, **slurm), name)


@pytest.mark.parametrize("mpirun", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
@pytest.mark.sample
def test_a_signal_that_mpirun_hands_on_is_handled_once_by_every_rank_after_the_same_step(tmp_path, mpirun):
    said = handled(tmp_path, mpirun, "SIGUSR1", lambda job: job.send_signal(signal.SIGUSR1))
    assert_handled_once(said, "SIGUSR1")
