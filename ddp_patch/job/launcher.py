"""Tell from the environment who started this process, and as which rank."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import LaunchError
from .table import LAUNCHERS, TORCH, Launcher

_LOOPBACK = "127.0.0.1"
_LOWEST_PORT, _PORTS = 10000, 20000  # below those that Linux gives to whoever asks for any
_HAND, _SIZED = (row for row in LAUNCHERS if row.name == "hand")


@dataclass(frozen=True)
class Placement:
    """Where this process stands in its job."""

    rank: int
    world_size: int
    local_rank: int  # index among the ranks of this host
    local_world_size: int  # ranks on this host


@dataclass(frozen=True)
class LaunchInfo:
    """What a launcher tells this process; what is local is left out by some, and found out by ``hosts``."""

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    launcher: Launcher = _HAND
    address: str | None = None  # of rank 0; None where the ranks have one host and meet there without being told a port
    port: int | None = None
    job: str = ""  # the name of the job, on one host

    def variables(self) -> dict[str, str]:
        """Give torch's variables for this rank, as far as they are known."""
        names = (*TORCH, "MASTER_ADDR", "MASTER_PORT")
        values = (
            *(self.rank, self.world_size, self.local_rank, self.local_world_size),
            *(self.address, self.port),
        )
        return {name: str(value) for name, value in zip(names, values, strict=True) if value is not None}


def detect(environ: Mapping[str, str]) -> LaunchInfo | None:
    """Read the placement that a launcher gave this process; None if nobody started ranks.

    Raises:
        LaunchError: when the variables are incomplete or contradict each other.
    """
    rows = found(environ)
    if not rows:
        return None
    for row in rows:
        size = environ.get(row.ranks[1], "")
        if row.refusal and size != "1":
            raise LaunchError(
                f"{row.name} started {size} processes ({row.ranks[1]}={size}), {row.refusal}.".format(size=size)
            )
    # Whatever started Ray did not start its workers.
    inner, outer = rows[0], [] if rows[0].keeps else rows[1:]
    rank, world_size, local_rank, local_world_size = _ranks(inner, environ)
    for row in outer:
        _refuse_other(inner, row, environ)
    if not all(environ.get(name) for name in (inner.address, inner.port)):
        # Of the same ranks, one that can let them meet: srun where it has mpirun's variables as well, for one.
        fitting = [row for row in outer if row.completes and (inner is _HAND or row.nodes)]
        inner = next((row for row in fitting if _is_same(row, environ, rank, world_size)), inner)
        rank, world_size, local_rank, local_world_size = _ranks(inner, environ)
    _refuse_one_of_several_agents(inner, environ)
    address, port, job = _meeting(inner, environ, world_size == local_world_size)
    return LaunchInfo(rank, world_size, local_rank, local_world_size, inner, address, port, job)


def found(environ: Mapping[str, str]) -> list[Launcher]:
    """List who has started this process, innermost first; who started a single one is left out."""
    rows: list[Launcher] = []
    seen = set()
    for row in LAUNCHERS:
        if row.ranks not in seen and all(environ.get(name) for name in row.marks):
            seen.add(row.ranks)
            if not _is_alone(row, environ):
                rows.append(row)
    if rows and rows[0] is _SIZED and any(_counts_alike(row, environ) for row in rows[1:]):
        del rows[0]  # a batch script exported it for all, beside the address, and the launcher tells each its rank
    return rows


def _counts_alike(row: Launcher, environ: Mapping[str, str]) -> bool:
    return row.completes and bool(environ.get(row.ranks[0])) and environ.get(row.ranks[1]) == environ.get("WORLD_SIZE")


def _is_alone(row: Launcher, environ: Mapping[str, str]) -> bool:
    if row.ranks == TORCH:
        is_one = environ.get("WORLD_SIZE") == "1" and not _wants_several(environ)
        return is_one and (row.pods or row in (_HAND, _SIZED))
    if row.shell and environ.get(row.shell) and has_terminal():
        return True
    return environ.get(row.ranks[1]) in ("", "1", None) and not (row.pods and _wants_several(environ))


def has_terminal() -> bool:
    """Tell a process that a person's shell started from a task that srun started in it, with the same variables."""
    try:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[4] != "0"  # tty_nr of proc(5)
    except OSError:
        return False


def _wants_several(environ: Mapping[str, str]) -> bool:
    each = environ.get("PET_NPROC_PER_NODE", "")
    return each.isdigit() and int(each) > 1


def first_host(nodes: str) -> str:
    """Give the first of a list as SLURM writes it: ``node[07-09,12],gpu1`` begins with node07."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _ranks(row: Launcher, environ: Mapping[str, str]) -> tuple[int, int, int | None, int | None]:
    needed = [*row.ranks[:2]] if row.completes else [*row.ranks[:2], row.address, row.port]
    present = [name for name in needed if environ.get(name)]
    missing = [name for name in needed if name not in present]
    if row.completes and missing:
        raise LaunchError(
            f"{row.name} started {environ[row.ranks[1]]} processes ({row.ranks[1]}={environ[row.ranks[1]]}), but "
            f"{missing[0]} and RANK are not set, so each of them would train alone. Write: torchrun --nproc-per-node="
            f"{environ[row.ranks[1]]} script.py"
        )
    if missing and not set(missing) <= {row.address, row.port}:
        _refuse_incomplete(present, missing)
    rank, world_size = (_integer(environ, name) for name in row.ranks[:2])
    local_rank, local_world_size = (_integer(environ, name) if environ.get(name) else None for name in row.ranks[2:])
    least, most = local_rank or 0, world_size if local_world_size is None else local_world_size
    if not (0 <= rank < world_size and 0 <= least < most <= world_size):
        raise LaunchError(
            f"{_said(row, environ)} contradict each other: a rank is below its world size. "
            "Unset them, or let one launcher set them all."
        )
    return rank, world_size, local_rank, local_world_size


def _refuse_incomplete(present: list[str], missing: list[str]) -> None:
    raise LaunchError(
        f"{', '.join(present)} is set but {', '.join(missing)} is not, so this process cannot find the others. "
        "Start the script with: torchrun --nproc-per-node=2 script.py"
    )


def _refuse_other(inner: Launcher, outer: Launcher, environ: Mapping[str, str]) -> None:
    """Refuse two launchers of which neither can stand inside of the other."""
    rank, world_size, _, local_world_size = _ranks(inner, environ)
    size = _integer(environ, outer.ranks[1])
    groups = next((_integer(environ, name) for name in inner.hosts if environ.get(name)), None)
    if groups is None and local_world_size:
        groups = world_size // local_world_size
    is_agent = "GROUP_WORLD_SIZE" in inner.hosts
    if is_agent or inner is _HAND:
        # One agent for each process of the outer one; or the same ranks by other names.
        fits = groups == size or (not is_agent and _is_same(outer, environ, rank, world_size))
    else:
        # mpirun has srun start its helpers, one on each other host; srun may set mpirun's variables.
        fits = groups != 1 or _is_same(outer, environ, rank, world_size)
    if not fits:
        inner_names, outer_names = (" ".join(row.ranks[1::-1]) for row in (inner, outer))
        raise LaunchError(
            f"By {inner.name}, {_said(inner, environ, 2)} but {outer.name} says {_said(outer, environ, 2)}, so it is "
            "unclear how many processes this job has. Let one of the two start them, or unset the variables of the one "
            f"that is not meant, for instance: unset {outer_names if is_agent else inner_names}"
        )


def _is_same(row: Launcher, environ: Mapping[str, str], rank: int, world_size: int) -> bool:
    return (environ.get(row.ranks[0]), environ.get(row.ranks[1])) == (str(rank), str(world_size))


def _refuse_one_of_several_agents(row: Launcher, environ: Mapping[str, str]) -> None:
    """Refuse a pod's own process where torchrun's options say that the pod has several."""
    if not row.pods:
        return
    each = environ.get("PET_NPROC_PER_NODE", "")
    nodes, size = environ.get("PET_NNODES", ""), environ[row.ranks[1]]
    if _wants_several(environ) or (nodes.isdigit() and nodes != size):
        raise LaunchError(
            f"{row.name} wants {each or 'several'} processes in each pod (PET_NPROC_PER_NODE={each}, "
            f"PET_NNODES={nodes}, {row.ranks[1]}={size}), but this is plain python, so the others never come. Write as "
            "the pod's command: torchrun script.py, which reads PET_*."
        )


def _meeting(row: Launcher, environ: Mapping[str, str], is_one_host: bool) -> tuple[str | None, int | None, str]:
    """Where rank 0 is: host and port; neither, and a name for the job, where all are on one host."""
    address, port = environ.get(row.address), environ.get(row.port)
    if row.keeps and not (address and port):
        raise LaunchError(
            f"{row.name} started {environ[row.ranks[1]]} workers and tells them no {row.address} and {row.port}, by "
            f"which their ranks would meet. Write: {row.how}"
        )
    if not row.completes and not (address and port):
        _refuse_incomplete(
            [name for name in (*row.ranks[:2], row.address, row.port) if environ.get(name)],
            [name for name in (row.address, row.port) if not environ.get(name)],
        )
    port_number = _integer(environ, row.port) if port else None
    if address and port_number:
        return address, port_number, ""
    job = ".".join(environ.get(name, "") for name in row.job)
    hosts = [environ[name] for name in row.hosts if environ.get(name)]
    if not address and (is_one_host if not hosts else hosts == ["1"]):
        return (_LOOPBACK, port_number, "") if port_number else (None, None, job)
    address = address or first_host(environ.get(row.nodes, ""))
    if not address:
        raise LaunchError(
            f"{row.name} started {environ[row.ranks[1]]} processes on several hosts, but {row.address} and {row.port} "
            "are not set, so they cannot find each other. Write: "
            f"{row.how or 'export MASTER_ADDR=node0 MASTER_PORT=29500'}"
        )
    return address, port_number or (_LOWEST_PORT + zlib.crc32(job.encode()) % _PORTS if row.job else 29500), ""


def _said(row: Launcher, environ: Mapping[str, str], count: int = len(TORCH)) -> str:
    names = row.ranks[:count] if row.ranks == TORCH else row.ranks[:count][::-1]  # the size beside the other's
    return ", ".join(f"{name}={environ[name]}" for name in names if environ.get(name))


def _integer(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise LaunchError(f"{name}={environ[name]!r} is not a number, so the ranks cannot be told apart.") from None
