"""What a launcher's ranks run, and how they are started."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import PATIENCE

SCRIPTS = Path(__file__).parent.parent / "parity" / "scripts"
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as in a container
OPEN_MPI = ["mpirun.openmpi", "--oversubscribe", "-np"]
MPICH = ["mpirun.mpich", "-np"]
NOT_OURS = ("DDP_PATCH_", "ACCELERATE_", "PYTHONHASH", "SLURM_")


def environment():
    environ = {key: value for key, value in os.environ.items() if not key.startswith(NOT_OURS)}
    return {**environ, **MPI, "OMP_NUM_THREADS": "1", "DDP_PATCH_QUIET": "1"}


def run(*command, cwd=None, patience=PATIENCE, **env):
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**environment(), **env},
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def leaving_no_note():
    """Ranks remove the notes by which they find each other; some that were killed before this could not."""
    folder = Path(tempfile.gettempdir()) / f"ddp_patch-{os.getuid()}"
    before = set(folder.glob("*"))
    yield
    assert set(folder.glob("*")) <= before


def python(*arguments):
    return [sys.executable, *map(str, arguments)]
