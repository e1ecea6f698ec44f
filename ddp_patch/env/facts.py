"""What one process knows of its job before it has met anybody."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from ..job.key import VARIABLE
from ..job.launcher import LaunchInfo, found
from ..job.program import hash_seed
from ..job.table import TORCH, Launcher
from ..options import PREFIX
from ..version import __version__

_HIDDEN = "set, and not shown"
_OURS = ("DDP_PATCH_AGENT", "DDP_PATCH_HEEDED", "DDP_PATCH_UNSAID")
_MARKS = {  # beginnings of variables, by who leaves them
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_",),
    "mpirun (MVAPICH2)": ("MV2_COMM_WORLD_",),
    "mpirun (MPICH, Intel MPI)": ("PMI_", "MPI_LOCAL"),
    "srun": ("SLURM_",),
    "PyTorchJob": ("PET_",),
    "TrainJob (Kubeflow)": ("PET_",),
    "torchrun": ("TORCHELASTIC_", "GROUP_", "ROLE_"),
    "ddp_patch": ("TORCHELASTIC_", "GROUP_", "ROLE_"),
    "accelerate launch": ("ACCELERATE_", "TORCHELASTIC_", "GROUP_", "ROLE_"),
    "horovodrun": ("HOROVOD_",),
}
_CHOSEN = (PREFIX, "GLOO_", "NCCL_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONHASHSEED", "ACCELERATE_")


def _is_secret(name: str) -> bool:
    return name == VARIABLE or any(word in name.upper() for word in ("JWT", "TOKEN", "SECRET", "PASSW"))


def set_by(environ: Mapping[str, str], launch: LaunchInfo | None) -> dict[str, dict[str, str]]:
    """Tell who set what, as far as names tell: launchers, ddp_patch for torch, and whoever set the rest.

    Args:
        environ: variables as they were found.
        launch: what the launcher told, if one started ranks.

    Returns:
        variables and their values, by who set them.
    """
    by: dict[str, dict[str, str]] = {}
    left = {name: _HIDDEN if _is_secret(name) and value else value for name, value in environ.items()}

    def take(who: str, names: list[str]) -> None:
        taken = {name: left.pop(name) for name in names if name in left}
        by.setdefault(who, {}).update(taken)

    take("ddp_patch", [name for name in _OURS if name in left])
    for row in found(environ):
        variables = [name for name in row.ranks if name] + ([] if row.completes else [row.address, row.port])
        take(row.name, variables + sorted(name for name in left if name.startswith(_MARKS.get(row.name, ("-",)))))
    take("the environment", sorted(name for name in left if name.startswith((*_CHOSEN, "MASTER_", *TORCH))))
    if launch is not None and launch.launcher.completes:
        by["ddp_patch, for torch"] = {
            f"{name} (from {source})": value
            for name, value in launch.variables().items()
            if (source := _source(launch.launcher, name)) and name not in environ
        }
    return {who: values for who, values in by.items() if values}


def _source(row: Launcher, name: str) -> str:
    if name in TORCH:
        return row.ranks[TORCH.index(name)]
    return {"MASTER_ADDR": row.address if row.address != name else row.nodes or "one host"}.get(
        name, row.port if row.port != name else "+".join(row.job) or "default"
    )


def started_by(environ: Mapping[str, str]) -> str:
    """Name who started this process, without asking whether that fits together."""
    rows = found(environ)
    return rows[0].name if rows else "nobody"


def versions() -> dict[str, str]:
    """Give what has to be the same on all hosts."""
    return {
        "ddp_patch": __version__,
        "torch": str(torch.__version__),
        "accelerate": version("accelerate"),
        "Python": platform.python_version(),
    }


def collect(launch: LaunchInfo | None) -> dict[str, Any]:
    """Give what this process knows, as JSON may hold it."""
    environ = dict(os.environ)
    return {
        "pid": os.getpid(),
        "folder": os.getcwd(),
        "versions": versions(),
        "set_by": set_by(environ, launch),
        "order": order(),
        "key": "set" if environ.get(VARIABLE) else "not set",
        "launchers": [row.name for row in found(environ)],
    }


def backend(kind: str, shares: bool) -> str:
    """Name what ranks on such devices talk by."""
    return "gloo" if kind == "cpu" or shares else torch.distributed.get_default_backend_for_device(kind)


def port_by(launch: LaunchInfo) -> str:
    """Say who chose where rank 0 is."""
    row = launch.launcher
    if launch.address is None:
        return "a free port of this host, chosen by ddp_patch"
    present = [name for name in (row.address, row.port) if name in os.environ]
    return " and ".join([*present, *(["derived from the job by ddp_patch"] if len(present) < 2 else [])])


def order() -> str:
    """Name the order of sets of strings that this rank would have: ``enable()`` has all agree on one that was drawn."""
    seed = hash_seed() or ""
    return f"PYTHONHASHSEED={seed if seed.isdigit() else '0'}"
