"""Who starts ranks, by the variables that each leaves for them: a row for each launcher, innermost first.

A launcher of a row stands inside of those below it where several left their variables: torchrun in a step of srun.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Launcher:
    """One row. Variables are named; the first one of several that is set counts."""

    name: str  # for people
    marks: tuple[str, ...]  # which are all set for each of its ranks
    ranks: tuple[str, str, str, str] = TORCH  # rank, world size; local rank, ranks on this host, if it tells them
    hosts: tuple[str, ...] = ()  # how many hosts, or torchrun's agents, the job has
    address: str = "MASTER_ADDR"
    port: str = "MASTER_PORT"
    nodes: str = ""  # a list of the job's hosts, rank 0's first
    job: tuple[str, ...] = ()  # which together name the job; without them it is its process that does
    completes: bool = False  # torch's variables have to be made from its own
    others: tuple[str, ...] = ()  # further variables that tell its ranks apart
    refusal: str = ""  # why it is not joined, and the line to write
    how: str = ""  # how to give it what lacks on several hosts
    pods: bool = False  # a process of each pod is the whole of its start: a single one may start ranks of its own
    shell: str = ""  # which is set where its process is a person's shell, and not one of several ranks
    starters: tuple[str, ...] = ()  # names of the process that is the parent of its ranks on each host
    each: str = ""  # how many ranks each host has, as SLURM writes it, and which host this is
    host: str = ""
    keeps: bool = False  # its processes, and the process group that it made, before the script's function and after it


LAUNCHERS = (
    Launcher("ddp_patch", ("DDP_PATCH_AGENT", "TORCHELASTIC_RUN_ID"), hosts=("GROUP_WORLD_SIZE",)),
    Launcher(
        "accelerate launch",
        ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", "RANK"),
        hosts=("GROUP_WORLD_SIZE",),
    ),
    Launcher("torchrun", ("TORCHELASTIC_RUN_ID",), hosts=("GROUP_WORLD_SIZE",)),
    Launcher(
        "Ray Train",
        ("RAY_JOB_ID", "RANK", "WORLD_SIZE", "NODE_RANK", "LOCAL_WORLD_SIZE"),
        how="TorchConfig(init_method='env')",
        keeps=True,
    ),
    Launcher("PyTorchJob", ("PET_NPROC_PER_NODE", "RANK"), hosts=("PET_NNODES",), pods=True),
    Launcher("PyTorchJob", ("KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE"), pods=True),
    Launcher("hand", ("RANK",)),
    Launcher("hand", ("WORLD_SIZE",)),
    Launcher(
        "TrainJob (Kubeflow)",
        ("PET_NODE_RANK", "PET_NNODES"),
        ranks=("PET_NODE_RANK", "PET_NNODES", "", ""),
        hosts=("PET_NNODES",),
        address="PET_MASTER_ADDR",
        port="PET_MASTER_PORT",
        completes=True,
        pods=True,
    ),
    Launcher(
        "horovodrun",
        ("HOROVOD_SIZE",),
        ranks=("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        refusal=(
            "whose ranks meet by Horovod's own means, so ddp_patch cannot join them. Write: "
            "python -m ddp_patch --nproc {size} script.py, or mpirun -np {size} python script.py"
        ),
    ),
    Launcher(
        "mpirun (Open MPI)",
        ("OMPI_COMM_WORLD_SIZE",),
        ranks=(
            *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ),
        hosts=("OMPI_MCA_orte_num_nodes",),  # of version 4
        completes=True,
        others=("OMPI_COMM_WORLD_NODE_RANK",),
        starters=("orted", "prted", "mpirun", "mpirun.openmpi", "orterun", "prterun"),
        how="mpirun -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29500 ..., with the host that has rank 0",
    ),
    Launcher(
        "mpirun (MVAPICH2)",
        ("MV2_COMM_WORLD_SIZE",),
        ranks=(
            *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
            *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ),
        completes=True,
        how="mpirun_rsh ... MASTER_ADDR=$(hostname) MASTER_PORT=29500 python ..., with the host that has rank 0",
    ),
    Launcher(
        "mpirun (MPICH, Intel MPI)",
        ("PMI_SIZE",),
        ranks=("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        completes=True,
        starters=("hydra_pmi_proxy",),
        others=("PMI_FD",),  # without it MPI takes itself for one process, with it, it asks mpirun
        how="mpirun -genv MASTER_ADDR $(hostname) -genv MASTER_PORT 29500 ..., with the host that has rank 0",
    ),
    # Not the variables of the job, SLURM_NTASKS for one: a batch script's own shell has them, with SLURM_PROCID=0.
    Launcher(
        "srun",
        ("SLURM_STEP_NUM_TASKS",),
        ranks=("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
        hosts=("SLURM_STEP_NUM_NODES",),
        nodes="SLURM_STEP_NODELIST",
        job=("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        completes=True,
        others=("SLURM_NODEID", "SLURM_NTASKS"),
        shell="SLURM_PTY_PORT",
        starters=("slurmstepd",),
        each="SLURM_STEP_TASKS_PER_NODE",
        host="SLURM_NODEID",
    ),
)

# What tells each process which one it is, or by what a program finds that there are several.
VARIABLES = frozenset(
    (
        *TORCH,
        *("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("NODE_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "JSM_NAMESPACE_RANK"),
        *(name for row in LAUNCHERS if row.completes for name in (*row.ranks, *row.others) if name),
        # What a script that a rank starts would take for its own.
        *("DDP_PATCH_AGENT", "DDP_PATCH_HEEDED", "DDP_PATCH_UNSAID"),
    )
)
