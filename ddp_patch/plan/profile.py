"""A profile: what was measured of a script, as JSON; docs/plan.md describes the form.

What `profile` and `scale` measure is one step in parts, on one or several numbers of ranks. The parts that grow with a
rank's rows are told from those that do not by the runs themselves, where these have different rows to a rank.

Of ``pace.StepTime``: total is step_seconds, loading, effects, optimizer and python are those with ``_seconds`` behind,
waiting is exposed_communication_seconds, and computing less python is compute_seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .job import Run, StepWork
from .problems import LEAST, MOST, PlanError
from .scaling import rows_of_a_rank

FORMAT, VERSION = "ddp_patch profile", 1
GROWING = ("compute_seconds", "loading_seconds")  # with the rows of a rank
FIXED = ("optimizer_seconds", "python_seconds", "effects_seconds")
PARTS = (*GROWING, *FIXED, "exposed_communication_seconds")
_NUMBERS = ("gradient_bytes", "activation_bytes", "memory_bytes", "learning_rate", "bucket_bytes")
_LINKS = ("within", "between")
KEYS = {"format", "version", "parameters", "batch_rows", "runs", "network", "optimizer", "precision", *_NUMBERS}
RUN = {"ranks", "hosts", "rows", "backwards", "step_seconds", "backward_seconds", *PARTS}
_WRITE = "docs/plan.md shows what a profile holds"


def read(path: str) -> dict[str, Any]:
    """Read a profile and look through it.

    Args:
        path: of the file.

    Returns:
        what it holds; ``runs`` as a list of ``Run``.

    Raises:
        PlanError: for a file that is none.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}. Write --profile FILE.json") from None
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise PlanError(f"{path} is no JSON ({error}). {_WRITE}") from None
    try:
        return _looked_through(found)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def work(runs: Sequence[Run]) -> StepWork:
    """Tell what grows with the rows of a rank from what does not.

    Of one run: what computes and loads grows. Of several with different rows to a rank: the line through their seconds
    without communication, by least squares, as far as it does not run below zero.

    Args:
        runs: at least one.
    """
    points = [(rows_of_a_rank(run.rows, run.ranks, run.batches), sum(_split(run))) for run in runs]
    rows = sum(each for each, _ in points) / len(points)
    seconds = sum(each for _, each in points) / len(points)
    spread = sum((each - rows) ** 2 for each, _ in points)
    named = sum(_split(run)[1] for run in runs) / len(runs)
    if spread > 0:
        per_row = sum((each - rows) * (its - seconds) for each, its in points) / spread
        per_row = min(max(per_row, 0.0), seconds / rows)
        fixed = seconds - per_row * rows
    else:
        fixed = named
        per_row = (seconds - fixed) / rows
    shares = [run.parts["backward_seconds"] / _split(run)[0] for run in runs if "backward_seconds" in run.parts]
    share = min(sum(shares) / len(shares), 1.0) if shares else StepWork(0.0).backward
    return StepWork(per_row, fixed, share, min(named, fixed))


def _split(run: Run) -> tuple[float, float]:
    """Seconds that grow with rows, and seconds that do not; what nothing names grows."""
    fixed = sum(run.parts.get(name, 0.0) for name in FIXED)
    return run.step - fixed - run.parts.get("exposed_communication_seconds", 0.0), fixed


def _looked_through(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PlanError(f'it is no profile: "format" is not "{FORMAT}". {_WRITE}')
    if found.get("version") != VERSION:
        raise PlanError(f'"version" is {found.get("version")!r}, and this ddp_patch reads version {VERSION}')
    _check_keys(found, KEYS, "the profile")
    for name in ("parameters", "batch_rows", *_NUMBERS):
        if name in found or name in ("parameters", "batch_rows"):
            _positive(found, name, "the profile")
    for name in ("optimizer", "precision"):
        if not isinstance(found.get(name, ""), str):
            raise PlanError(f'"{name}" is {found[name]!r}, and has to be a name. {_WRITE}')
    _network(found.get("network", {}))
    runs = found.get("runs")
    if not isinstance(runs, list) or not runs:
        raise PlanError(f'"runs" has to be a list of at least one measured step. {_WRITE}')
    return {**found, "runs": tuple(_run(run, f"run {number}", found) for number, run in enumerate(runs))}


def _network(network: Any) -> None:
    if not isinstance(network, dict):
        raise PlanError(f'"network" is {network!r}, and has to hold devices_per_host, within and between. {_WRITE}')
    _check_keys(network, {"devices_per_host", *_LINKS}, "network")
    if "devices_per_host" in network:
        _whole(network, "devices_per_host", "network")
    for name in _LINKS:
        link = network.get(name, {})
        if not isinstance(link, dict):
            raise PlanError(f'"{name}" is {link!r}, and has to hold bandwidth_bytes_per_second and latency_seconds')
        _check_keys(link, {"bandwidth_bytes_per_second", "latency_seconds"}, name)
        if link:
            _positive(link, "bandwidth_bytes_per_second", name)
            _positive(link, "latency_seconds", name, or_zero=True)


def _run(run: Any, where: str, profile: dict[str, Any]) -> Run:
    if not isinstance(run, dict):
        raise PlanError(f"{where} of runs is {run!r}, and has to hold ranks and step_seconds. {_WRITE}")
    _check_keys(run, RUN, where)
    ranks = _whole(run, "ranks", where)
    hosts = _whole({"hosts": 1, **run}, "hosts", where)
    if ranks % hosts:
        raise PlanError(f"{where}: {ranks} ranks cannot be on {hosts} hosts with as many on each")
    step = _positive(run, "step_seconds", where)
    rows = _positive({"rows": profile["batch_rows"], **run}, "rows", where)
    parts = {name: _positive(run, name, where, or_zero=True) for name in (*PARTS, "backward_seconds") if name in run}
    named = sum(seconds for name, seconds in parts.items() if name != "backward_seconds")
    growing = step - sum(parts.get(name, 0.0) for name in (*FIXED, "exposed_communication_seconds"))
    if named > step * 1.01 or growing <= 0:
        raise PlanError(f"{where}: its parts are {named:.6g} seconds together, and step_seconds {step:.6g}")
    return Run(ranks, hosts, rows, step, parts, _whole({"backwards": 1, **run}, "backwards", where))


def _check_keys(found: dict[str, Any], names: set[str], where: str) -> None:
    for name in found:
        if name not in names:
            raise PlanError(f'{where} has "{name}", which nothing knows. There are {", ".join(sorted(names))}')


def _positive(found: dict[str, Any], name: str, where: str, or_zero: bool = False) -> float:
    value: Any = found.get(name)
    if name not in found:
        raise PlanError(f'{where} lacks "{name}". {_WRITE}')
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value < 0 or (value == 0 and not or_zero) or value != value:
        raise PlanError(f'{where}: "{name}" is {value!r}, and has to be a number above 0')
    if value and not LEAST <= value <= MOST:
        raise PlanError(f'{where}: "{name}" is {str(value)[:20]}, and has to be between {LEAST:g} and {MOST:g}')
    return float(value)


def _whole(found: dict[str, Any], name: str, where: str) -> int:
    value = _positive(found, name, where)
    if value != int(value):
        raise PlanError(f'{where}: "{name}" is {value:g}, and has to be a whole number')
    return int(value)
