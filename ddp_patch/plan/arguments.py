"""What a profile and options together say: a ``PlannedJob``, and numbers of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from . import units
from .answers import Answers
from .job import PlannedJob, Run
from .memory import OPTIMIZERS, PRECISIONS
from .network import ALGORITHMS, Link
from .options import EXAMPLE
from .overlap import CAP, MIB
from .problems import PlanError
from .step import batches_of, work_of

_MOST = 65536  # ranks
_MOST_BUCKETS = 100_000
_USUAL = 1024  # ranks, if nobody says
_LATENCY = 10e-6


def job(options: Mapping[str, Any], profile: Mapping[str, Any]) -> tuple[PlannedJob, list[str]]:
    """Put together what is planned for, and say what nobody said.

    Args:
        options: by their names, as text; None for those that were left out.
        profile: what ``profile.read`` gave; empty without one.

    Raises:
        PlanError: for what is missing or cannot be.
    """
    answers = Answers(options, profile)
    runs: tuple[Run, ...] = profile.get("runs", ())
    parameters, step, rows = _required(answers, runs)
    optimizer, precision = _optimizer_and_precision(answers)
    devices = _devices(answers, runs)
    within, between = _links(answers)
    if within is None and devices > 1:
        answers.assumed.append("devices of a host that reach each other as fast as hosts do")
    size, bucket = _gradients(answers, parameters, precision)
    work, batches = work_of(answers, step, rows, runs), batches_of(answers, rows, runs)
    algorithm = answers.name("--algorithm", (*ALGORITHMS, "fastest")) or "fastest"
    blocks = answers.number("--blocks", units.count)
    return PlannedJob(
        parameters=parameters,
        gradients=size,
        rows=rows,
        work=work,
        devices=devices,
        knows_between=between is not None,
        within=within or _either(between),
        between=between or _either(within),
        bucket=bucket,
        algorithm=algorithm,
        optimizer=optimizer,
        precision=precision,
        activations=_activations(answers, rows, runs, batches),
        memory=answers.number("--memory", units.size, "memory_bytes"),
        blocks=max(int(blocks or 12), 1),
        rate=answers.number("--lr", units.count, "learning_rate"),
        critical=answers.number("--critical-batch", units.count),
        batches=batches,
        whole=answers.number("--global-batch", units.count),
        runs=runs,
    ), answers.assumed


def _required(answers: Answers, runs: tuple[Run, ...]) -> tuple[float, float | None, float]:
    """Read parameters, seconds of a step and rows of its batch; the seconds may be None where there are runs."""
    parameters = answers.number("--parameters", units.count, "parameters")
    step, rows = answers.number("--step", units.time), answers.number("--batch", units.count, "batch_rows")
    lacking = [
        flag
        for flag, value in (("--parameters", parameters), ("--step", step or runs or None), ("--batch", rows))
        if value is None
    ]
    if parameters is None or rows is None or lacking:
        words = f"{' and '.join(lacking)} {'are' if lacking[1:] else 'is'} missing"
        raise PlanError(f"{words}. Write {EXAMPLE}; or --profile FILE.json")
    return parameters, step, rows


def _optimizer_and_precision(answers: Answers) -> tuple[str, str]:
    optimizer = answers.name("--optimizer", OPTIMIZERS, "optimizer")
    precision = answers.name("--precision", PRECISIONS, "precision")
    return answers.or_else(optimizer, "adamw", "AdamW"), answers.or_else(precision, "fp32", "float32")


def _devices(answers: Answers, runs: tuple[Run, ...]) -> int:
    """Read how many devices a host has."""
    devices = answers.number("--devices", units.count)
    devices = devices or answers.profile.get("network", {}).get("devices_per_host")
    whole = answers.whole("--devices", answers.or_else(devices, 1, "1 device to a host"))
    _same_ranks(runs, whole)
    return whole


def _gradients(answers: Answers, parameters: float, precision: str) -> tuple[float, float]:
    """Read the bytes of all gradients, and of a bucket."""
    is_measured = answers.options["parameters"] is None and answers.options["precision"] is None
    size = answers.number("--gradient-bytes", units.size, "gradient_bytes" if is_measured else "")
    size = size or parameters * PRECISIONS[precision].gradient
    mebibytes = answers.number("--bucket-cap-mb", units.count)
    bucket = answers.profile.get("bucket_bytes", CAP) if mebibytes is None else mebibytes * MIB
    if size / bucket > _MOST_BUCKETS:
        raise PlanError(f"{size:.3g} bytes in buckets of {bucket:.3g} are too many. Write a larger --bucket-cap-mb")
    return size, bucket


def _activations(answers: Answers, rows: float, runs: tuple[Run, ...], batches: int) -> float | None:
    """Read the bytes of activations for all rows; a profile has those of one of its batches."""
    activations = answers.number("--activations", units.size, "activation_bytes")
    if activations and answers.options["activations"] is None:
        activations *= rows / answers.profile["batch_rows"] * runs[0].batches / batches
    return activations


def _same_ranks(runs: tuple[Run, ...], devices: int) -> None:
    """Refuse what was measured on more ranks of a host than one has devices."""
    for run in runs:
        each = run.ranks // run.hosts
        if each > devices:
            hosts = f"{run.hosts} host{'s' if run.hosts > 1 else ''}"
            raise PlanError(
                f"the profile has a run of {run.ranks} ranks on {hosts}, and a host is planned with {devices} "
                f"device{'s' if devices > 1 else ''}. Write --devices {each}, or measure again on fewer ranks"
            )


def _links(answers: Answers) -> tuple[Link | None, Link | None]:
    """What is known of the ways within a host, and between hosts."""
    network = answers.profile.get("network", {})
    inside, outside = network.get("within", {}), network.get("between", {})
    bandwidth = answers.number("--bandwidth", units.rate) or outside.get("bandwidth_bytes_per_second")
    bandwidth_within = answers.number("--bandwidth-within", units.rate) or inside.get("bandwidth_bytes_per_second")
    if bandwidth is None and bandwidth_within is None:
        raise PlanError("--bandwidth is missing: bytes/s that a host reaches to others. Write --bandwidth 25e9")
    latency = answers.number("--latency", units.time, or_zero=True)
    latency_within = answers.number("--latency-within", units.time, or_zero=True)
    latency = outside.get("latency_seconds") if latency is None else latency
    latency_within = inside.get("latency_seconds") if latency_within is None else latency_within
    if latency is None:
        latency = answers.or_else(latency_within, _LATENCY, "a latency of 10 us")
    latency_within = latency if latency_within is None else latency_within
    return (
        None if bandwidth_within is None else Link(bandwidth_within, latency_within),
        None if bandwidth is None else Link(bandwidth, latency),
    )


def _either(link: Link | None) -> Link:
    assert link is not None
    return link


def ranks_of(options: Mapping[str, Any], its: PlannedJob) -> list[int]:
    """Give the numbers of ranks that are asked for.

    Raises:
        PlanError: for ranks that are not on whole hosts.
    """
    devices = its.devices
    below = [1 << power for power in range(1, devices.bit_length()) if 1 << power < devices]  # on a part of one host
    hosts = None if options["hosts"] is None else _several("--hosts", options["hosts"])
    if options["ranks"] is not None:
        ranks = _several("--ranks", options["ranks"])
        for each in ranks:
            if each > devices and each % devices:
                near = (each // devices + 1) * devices
                raise PlanError(f"{each} ranks are no whole hosts of {devices} devices. Write --ranks {near}")
            if hosts is not None and its.placed(each)[0] not in hosts:
                raise PlanError(
                    f"{each} ranks are {its.placed(each)[0]} hosts of {devices} devices, and --hosts is "
                    f"{options['hosts']}. Write one of --ranks and --hosts"
                )
    else:
        hosts = hosts or (_doubling(1, max(_USUAL // devices, 1)) if its.knows_between else [1])
        ranks = [*(below if 1 in hosts else []), *(each * devices for each in hosts)]
    ranks = sorted({each for each in ranks if each > 1})
    if not ranks:
        raise PlanError("there is one rank, and nothing to plan. Write --hosts 1..128 or --devices 8")
    most = max([its.placed(ranks[-1])[0], *(run.hosts for run in its.runs)])
    if not its.knows_between and most > 1:
        raise PlanError(
            "--bandwidth is missing: bytes/s that a host reaches to others. Write --bandwidth 25e9, or --devices "
            f"{ranks[-1]} for one host"
        )
    if ranks[-1] > _MOST:
        raise PlanError(f"{ranks[-1]} ranks are more than {_MOST:,}. Write fewer --hosts")
    return ranks


def _several(flag: str, text: str) -> list[int]:
    """Read 1..128 as numbers that double, 1,2,3 as they are."""
    first = last = 0
    try:
        if ".." in text:
            first, last = map(int, text.split(".."))
            if 1 <= first <= last <= _MOST:
                return _doubling(first, last)
        else:
            found = [int(each) for each in text.split(",")]
            if all(1 <= each <= _MOST for each in found):
                return found
    except ValueError:
        pass
    if 1 <= last < first:
        raise PlanError(f"{flag} is {text}, from more to fewer. Write {flag} {last}..{first}")
    raise PlanError(f"{flag} is {text}, and has to be numbers above 0. Write {flag} 1..128 or {flag} 2,4,8")


def _doubling(first: int, last: int) -> list[int]:
    count = int(math.log2(last / first)) + 1
    return [first << power for power in range(count)]
