"""Tell from the environment who started this process, and as which rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import LaunchError

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Launchers that say how many processes they started but leave torch's variables to somebody else.
_SIZE_VARIABLES = {
    "mpirun (Open MPI)": "OMPI_COMM_WORLD_SIZE",
    "mpirun (MPICH, Intel MPI)": "PMI_SIZE",
    "mpirun (MVAPICH2)": "MV2_COMM_WORLD_SIZE",
    "srun": "SLURM_STEP_NUM_TASKS",
}


# What each launcher leaves for the ranks that it starts; the first one that is there has started them.
_MARKS = {
    "DDP_PATCH_AGENT": "ddp_patch",
    "ACCELERATE_MIXED_PRECISION": "accelerate launch",
    "TORCHELASTIC_RUN_ID": "torchrun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpirun",
    "MV2_COMM_WORLD_SIZE": "mpirun",
    "SLURM_PROCID": "srun",
}


@dataclass(frozen=True)
class Placement:
    """Where this process stands in its job."""

    rank: int
    world_size: int
    local_rank: int  # index among the ranks of this host
    local_world_size: int  # ranks on this host


@dataclass(frozen=True)
class Told:
    """What a launcher tells this process; what is local is left out by some, and found out by ``hosts``."""

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None


def detect(environ: Mapping[str, str]) -> Told | None:
    """Read the placement that torchrun or ``accelerate launch`` gave this process; None if nobody started ranks.

    Raises:
        LaunchError: when the variables are incomplete or contradict each other.
    """
    present = [name for name in _RANK_VARIABLES if environ.get(name)]
    if "RANK" not in present and "WORLD_SIZE" not in present:
        _refuse_unknown_launcher(environ)
        return None
    missing = [name for name in _RANK_VARIABLES if name not in present]
    if missing:
        raise LaunchError(
            f"{', '.join(present)} is set but {', '.join(missing)} is not, so this process cannot find the others. "
            "Start the script with: torchrun --nproc-per-node=2 script.py"
        )
    rank, world_size = _integer(environ, "RANK"), _integer(environ, "WORLD_SIZE")
    local_rank, local_world_size = (
        _integer(environ, name) if environ.get(name) else None for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    least, most = local_rank or 0, world_size if local_world_size is None else local_world_size
    if not (0 <= rank < world_size and 0 <= least < most <= world_size):
        given = {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world_size}
        local = "".join(f", {name}={value}" for name, value in given.items() if value is not None)
        raise LaunchError(
            f"RANK={rank}, WORLD_SIZE={world_size}{local} contradict each other: a rank is below its world size. "
            "Unset them, or let one launcher set them all."
        )
    _refuse_other_size(environ, world_size)
    return Told(rank, world_size, local_rank, local_world_size)


def started_by(environ: Mapping[str, str]) -> str:
    """Name who started the ranks, for people."""
    return next((launcher for mark, launcher in _MARKS.items() if environ.get(mark)), "hand")


def _refuse_unknown_launcher(environ: Mapping[str, str]) -> None:
    for launcher, variable in _SIZE_VARIABLES.items():
        if environ.get(variable, "1") not in ("", "1"):
            raise LaunchError(
                f"{launcher} started {environ[variable]} processes ({variable}={environ[variable]}), but RANK and "
                "WORLD_SIZE are not set, so each of them would train alone. Write: torchrun --nproc-per-node="
                f"{environ[variable]} script.py"
            )


def _refuse_other_size(environ: Mapping[str, str], world_size: int) -> None:
    for launcher, name in _SIZE_VARIABLES.items():
        if environ.get(name, "1") not in ("", "1", str(world_size)):
            raise LaunchError(
                f"WORLD_SIZE={world_size} but {launcher} says {name}={environ[name]}, so it is unclear how many "
                f"processes this job has. Unset the one that is not meant, for instance: unset WORLD_SIZE RANK"
            )


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise LaunchError(f"{name}={environ[name]!r} is not a number, so the ranks cannot be told apart.") from None
