"""Start this very program again: as workers under torch.distributed.run, or with an agreed string hash.

Both replace the process. 21 of 54 scripts have no ``__main__`` guard, so functions cannot be spawned.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from ..errors import LaunchError, OptionError, OrderError
from ..ledger import script_line
from ..version import OLDEST_TORCH
from . import program
from .debugged import hand_over
from .launcher import LaunchInfo


def worker_count(asked: int | None, accelerators: int, may_share: bool = False) -> int:
    """Decide how many ranks to start when nobody started any.

    Args:
        asked: the ``nproc`` option.
        accelerators: number of visible accelerators; 0 on a host without any.
        may_share: the ``share_devices`` option.

    Raises:
        LaunchError: when more ranks than accelerators were asked for.
    """
    if asked is None:
        return max(1, accelerators)
    if accelerators and asked > accelerators and not may_share:
        raise LaunchError(
            f"nproc={asked} but {accelerators} accelerator{'s are' if accelerators > 1 else ' is'} visible, and a rank "
            f"needs one of its own. Write nproc={accelerators}, make more visible (CUDA_VISIBLE_DEVICES), or write "
            "ddp_patch.enable(share_devices=True) to try a script out."
        )
    return asked


def refuse_other_count(asked: int | None, started: int) -> None:
    """Refuse a number of ranks that is not the launcher's.

    Raises:
        OptionError: naming both.
    """
    if asked not in (None, started):
        raise OptionError(
            f"nproc={asked}, but the launcher started {started} ranks. "
            "Leave nproc out where a launcher is used, or start the script with plain python."
        )


def refuse_old_torch(found: str) -> None:
    """Say so before something is missing in the middle of it.

    Args:
        found: ``torch.__version__``.

    Raises:
        LaunchError: for a torch older than this package knows.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise LaunchError(
            f"torch {found} is installed, and ddp_patch works with torch {oldest} or newer. "
            f"Write pip install 'torch>={oldest}', or run the script on one process."
        )


def cores() -> int:
    """Count the processor cores that this process may use: a queue or a container may give it some of the host's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environment(environ: Mapping[str, str], nproc: int, cpus: int) -> dict[str, str]:
    """Give the workers an agreed string hash and a fair share of the cores."""
    agreed = dict(environ)
    if not agreed.get("PYTHONHASHSEED", "").isdigit():  # "random", for one
        agreed["PYTHONHASHSEED"] = "0"  # the order of a set of strings decides batches in some scripts
    agreed.setdefault("OMP_NUM_THREADS", str(max(1, cpus // nproc)))
    return agreed


def start_workers(nproc: int, options: Mapping[str, str]) -> None:
    """Replace this process by ``nproc`` ranks of the same program. Does not return.

    Args:
        nproc: number of ranks.
        options: variables, for ranks where ddp_patch is enabled before the script says so.

    Raises:
        LaunchError: for a process that has no command line of its own to repeat, or that pytest runs in.
    """
    if program.is_forked():
        raise LaunchError(
            "This process was forked by another program, which cannot be started again as several processes. Put what "
            "shall run on several into a function and write: ddp_patch.launch(train, nproc=2)"
        )
    _refuse_within_pytest("Write ddp_patch.launch(train, nproc=2) in a test, or ddp_patch.enable(nproc=1)")
    command, variables = hand_over(program.script_command(sys.orig_argv, sys.executable))
    environ = worker_environment(os.environ, nproc, cores())
    environ.update({**options, **variables} if variables else {})
    _replace([*agent(), str(nproc), *command], environ)


def agent() -> list[str]:
    """Give the command that starts ranks: this package's agent."""
    flags = sys.flags
    return package_module("ddp_patch.job.agent", "-I" if flags.isolated else "-E" if flags.ignore_environment else "")


def package_module(name: str, flag: str = "") -> list[str]:
    """Give the command that runs a module of this package, found where this package is.

    By ``-m`` the current folder would come before Python's own modules, and somebody may have left an ``argparse.py``
    there, which a script in another folder never meets.
    """
    folder = str(Path(__file__).parents[2])
    code = (
        f"import sys; sys.path[:] = [*filter(None, sys.path), {folder!r}]; "
        f"from {name} import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, *filter(None, [flag]), "-c", code]


def refuse_other_group() -> None:
    """Refuse a process that already talks to other ranks by itself; before any restart, which would make it talk twice.

    Raises:
        OrderError: naming the line to move.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        raise OrderError(
            f"{script_line()}: a process group ({dist.get_backend()}, {dist.get_world_size()} ranks) exists already, "
            "so the script is distributed by itself or something else made one. Move ddp_patch.enable() above that "
            "line, or leave it out of a script that calls init_process_group."
        )


def agree_on_hashes(info: LaunchInfo) -> None:
    """Restart this rank with the string hash every rank uses, if its interpreter drew a random one.

    Raises:
        LaunchError: for an interpreter that takes no hash from its environment; for one that pytest runs in.
    """
    if info.world_size == 1 or not sys.flags.hash_randomization:
        return
    if sys.flags.ignore_environment:
        raise LaunchError(
            "python -E and -I leave PYTHONHASHSEED alone, so that sets of strings have another order on every rank, "
            "and some scripts draw batches from them. Leave the flag out; -s and -P go together with ddp_patch."
        )
    if (program.hash_seed() or "").isdigit() or program.is_forked():
        return
    _refuse_within_pytest("Write PYTHONHASHSEED=0 before the launcher's command")
    # Not what the script may have set since, which may be another one on each rank, or at each start.
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    ranks = info.local_world_size or (info.world_size if info.address is None else 0)
    if ranks and cores() == (os.cpu_count() or 1):  # otherwise the launcher has given each its cores, or has not said
        environ = worker_environment(environ, ranks, cores())
    _replace(program.script_command(sys.orig_argv, sys.executable), environ)


def _refuse_within_pytest(advice: str) -> None:
    # A script that imports pytest for its helpers is not called by it.
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("_pytest."):
        frame = frame.f_back
    if frame is not None:
        raise LaunchError(
            "pytest runs in this process and keeps what it prints in files of its own, so that nothing would be seen "
            f"of ranks that take its place. {advice}."
        )


def _replace(command: list[str], environ: dict[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):  # a folder that is gone
        os.chdir(program.folder_of_start())  # the lines above run again
    os.execve(command[0], command, environ)
