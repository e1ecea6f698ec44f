"""Launchers are told by their variables: recorded environments, without launching. tests/launchers has the real ones."""

import os
import subprocess
import sys

import pytest
from conftest import PATIENCE

from ddp_patch.errors import LaunchError
from ddp_patch.job import launcher

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node07", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
# Open MPI 4.1, second of two on one host; MPICH 4.0, last of three; as `mpirun -np 2 env` prints them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_num_nodes": "1", "PMIX_NAMESPACE": "1854144513", "PMIX_RANK": "1",
}  # fmt: skip
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "8", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3"}
# srun -N2 --ntasks-per-node=2, task 3, inside of a batch job.
SLURM = {
    "SLURM_CLUSTER_NAME": "big", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
}  # fmt: skip
# The second pod of two: PyTorchJob v1 (plain python in each pod), and TrainJob v2 (variables for torchrun alone).
PYTORCHJOB = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1", "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "mnist-master-0", "MASTER_PORT": "23456",
    "RANK": "1", "WORLD_SIZE": "2", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": "2", "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "mnist-master-0", "PET_MASTER_PORT": "23456",
}  # fmt: skip
TRAINJOB = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "mnist-node-0-0.mnist", "PET_MASTER_PORT": "29400",
}  # fmt: skip
# A worker of ray 2.60's TorchTrainer.
RAY = {
    "RAY_JOB_ID": "01000000", "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "52029", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "0", "RANK": "0", "WORLD_SIZE": "1",
}  # fmt: skip
BATCH_SHELL = {
    "SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[07-08]",
}  # fmt: skip


@pytest.mark.parametrize(
    "environ",
    [
        {},
        BATCH_SHELL,
        {**BATCH_SHELL, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},  # an interactive step of salloc
        {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        # A job of one pod, which may have several devices.
        {**PYTORCHJOB, "RANK": "0", "WORLD_SIZE": "1", "PET_NNODES": "1"},
        {
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "m",
            "MASTER_PORT": "7",
        },
        {**TRAINJOB, "PET_NNODES": "1", "PET_NODE_RANK": "0"},
        # What an earlier run, or a notebook, has left.
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
    ],
)
def test_one_process_is_nobodys_rank(environ):
    assert launcher.detect(environ) is None


@pytest.mark.parametrize("is_shell", [True, False])
def test_the_shell_of_srun_pty_is_one_process_and_what_srun_starts_in_it_is_not(monkeypatch, is_shell):
    monkeypatch.setattr(launcher, "has_terminal", lambda: is_shell)
    told = launcher.detect({**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_PTY_PORT": "40123"})
    assert told is None if is_shell else told.rank == 3


@pytest.mark.slow
def test_a_single_pod_starts_ranks_of_its_own(tmp_path):
    (tmp_path / "train.py").write_text("import ddp_patch\n\nddp_patch.enable(nproc=2)\nprint(ddp_patch.world_size())\n")
    pod = {**PYTORCHJOB, "RANK": "0", "WORLD_SIZE": "1", "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path, env={**os.environ, **pod}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.parametrize(
    ("environ", "name", "placed", "where"),
    [
        (TORCHRUN, "torchrun", (5, 8, 1, 4), ("node07", 29500)),
        (
            {**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"},
            "accelerate launch",
            (5, 8, 1, 4),
            ("node07", 29500),
        ),
        ({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "bf16"}, "torchrun", (5, 8, 1, 4), ("node07", 29500)),  # of a shell
        ({**TORCHRUN, "DDP_PATCH_AGENT": "1"}, "ddp_patch", (5, 8, 1, 4), ("node07", 29500)),
        (OPEN_MPI, "mpirun (Open MPI)", (1, 2, 1, 2), (None, None)),
        ({**OPEN_MPI, "MASTER_PORT": "7"}, "mpirun (Open MPI)", (1, 2, 1, 2), ("127.0.0.1", 7)),
        ({**OPEN_MPI, "MASTER_ADDR": "n", "MASTER_PORT": "7"}, "mpirun (Open MPI)", (1, 2, 1, 2), ("n", 7)),
        (MPICH, "mpirun (MPICH, Intel MPI)", (2, 3, 2, 3), (None, None)),
        (SLURM, "srun", (3, 4, 1, None), ("node07", 15494)),
        ({**SLURM, "MASTER_PORT": "7"}, "srun", (3, 4, 1, None), ("node07", 7)),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, "srun", (3, 4, 1, None), (None, None)),
        (
            {**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"},
            "srun",
            (3, 4, 1, None),
            ("node07", 15494),
        ),
        (RAY, "Ray Train", (0, 1, 0, 1), ("10.0.0.2", 52029)),
        ({**RAY, "RANK": "1", "WORLD_SIZE": "2"}, "Ray Train", (1, 2, 0, 1), ("10.0.0.2", 52029)),
        # Each node's raylet is a task of srun's, which its workers inherit.
        ({**SLURM, **RAY, "RANK": "1", "WORLD_SIZE": "2"}, "Ray Train", (1, 2, 0, 1), ("10.0.0.2", 52029)),
        (PYTORCHJOB, "PyTorchJob", (1, 2, None, None), ("mnist-master-0", 23456)),
        (TRAINJOB, "TrainJob (Kubeflow)", (1, 2, None, None), ("mnist-node-0-0.mnist", 29400)),
        # Inside of each other: an agent for each task of a step, or for each pod.
        ({**SLURM, **TORCHRUN, "SLURM_STEP_NUM_TASKS": "2"}, "torchrun", (5, 8, 1, 4), ("node07", 29500)),
        ({**PYTORCHJOB, **TORCHRUN}, "torchrun", (5, 8, 1, 4), ("node07", 29500)),
        ({**TRAINJOB, **TORCHRUN}, "torchrun", (5, 8, 1, 4), ("node07", 29500)),
        # The same ranks by other names.
        ({**MPICH, "RANK": "2", "WORLD_SIZE": "3"}, "mpirun (MPICH, Intel MPI)", (2, 3, 2, 3), (None, None)),
        (
            {**SLURM, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "n", "MASTER_PORT": "7"},
            *("hand", (3, 4, None, None), ("n", 7)),
        ),
        # A batch script exports what all tasks have in common.
        (
            {**SLURM, "WORLD_SIZE": "4", "MASTER_ADDR": "n", "MASTER_PORT": "7"},
            *("srun", (3, 4, 1, None), ("n", 7)),
        ),
        # Open MPI on two hosts has srun start its helper on the second one.
        (
            {
                **{**SLURM, "SLURM_STEP_NUM_TASKS": "2", "OMPI_MCA_orte_num_nodes": "3", "MASTER_ADDR": "n"},
                **{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6"},
            },
            *("mpirun (Open MPI)", (5, 6, None, None), ("n", 29500)),
        ),
    ],
)
def test_a_launcher_is_told_by_its_variables(environ, name, placed, where):
    told = launcher.detect(environ)
    assert told.launcher.name == name
    assert (told.rank, told.world_size, told.local_rank, told.local_world_size) == placed
    assert (told.address, told.port) == where


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        # mpirun inside of torchrun's ranks, also where the numbers happen to be the same
        ({**TORCHRUN, **OPEN_MPI, "GROUP_WORLD_SIZE": "1"}, "By torchrun, RANK=5, WORLD_SIZE=8 but mpirun (Open MPI) says OMPI_COMM_WORLD_SIZE=2"),
        ({**TORCHRUN, **OPEN_MPI, "RANK": "1", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}, "By torchrun"),
        # each task of a step starts its own
        ({**SLURM, **TORCHRUN, "GROUP_WORLD_SIZE": "1"}, "By torchrun, RANK=5, WORLD_SIZE=8 but srun says SLURM_STEP_NUM_TASKS=4"),
        ({**SLURM, **OPEN_MPI}, "By mpirun (Open MPI), OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=1 but srun says"),
        # old variables of a shell
        ({**MPICH, "RANK": "0", "WORLD_SIZE": "3"}, "By hand, RANK=0, WORLD_SIZE=3 but mpirun (MPICH, Intel MPI) says PMI_SIZE=3"),
        ({"PMI_SIZE": "3"}, "PMI_RANK and RANK are not set, so each of them would train alone"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}, "contradict each other: a rank is below its world size"),
        # several hosts, and nobody says where rank 0 is
        ({**OPEN_MPI, "OMPI_MCA_orte_num_nodes": "2"}, "Write: mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500"),
        ({**MPICH, "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}, "Write: mpirun -genv MASTER_ADDR $(hostname)"),
        (
            {name: value for name, value in RAY.items() if "MASTER" not in name} | {"WORLD_SIZE": "2"},
            "Ray Train started 2 workers and tells them no MASTER_ADDR and MASTER_PORT",
        ),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"}, "horovodrun started 4 processes (HOROVOD_SIZE=4), whose ranks"),
        ({**OPEN_MPI, "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "python -m ddp_patch --nproc 2 script.py"),
        ({**PYTORCHJOB, "PET_NPROC_PER_NODE": "2", "WORLD_SIZE": "4"}, "Write as the pod's command: torchrun script.py"),
        ({**TRAINJOB, "PET_NPROC_PER_NODE": "2"}, "TrainJob (Kubeflow) wants 2 processes in each pod"),
        (
            {**TRAINJOB, "PET_NPROC_PER_NODE": "2", "PET_NNODES": "1", "PET_NODE_RANK": "0"},
            "TrainJob (Kubeflow) wants 2 processes in each pod",
        ),
    ],
)  # fmt: skip
def test_launchers_that_contradict_each_other_are_named(environ, words):
    with pytest.raises(LaunchError) as caught:
        launcher.detect(environ)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node07", "node07"),
        ("node07,node09", "node07"),
        ("node[07-09,12],gpu1", "node07"),
        ("gpu1,node[07-09]", "gpu1"),
        ("rack[1-2]node[3,5]", "rack1node3"),
        ("a-[9].cluster,b", "a-9.cluster"),
        ("", ""),
    ],
)
def test_the_first_host_of_slurms_list(nodes, first):
    assert launcher.first_host(nodes) == first
