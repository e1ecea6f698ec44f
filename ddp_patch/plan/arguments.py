"""What a profile and options together say: a ``PlannedJob``, and numbers of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import units
from .job import PlannedJob, Run
from .memory import OPTIMIZERS, PRECISIONS
from .network import ALGORITHMS, Link
from .options import EXAMPLE
from .overlap import CAP, MIB
from .problems import LEAST, MOST, PlanError
from .step import batches_of, work_of

_MOST = 65536  # ranks
_MOST_BUCKETS = 100_000
_USUAL = 1024  # ranks, if nobody says
_LATENCY = 10e-6
_T = TypeVar("_T")


def job(given: Mapping[str, Any], profile: Mapping[str, Any]) -> tuple[PlannedJob, list[str]]:
    """Put together what is planned for, and say what nobody said.

    Args:
        given: options by their names, as text; None for those that were left out.
        profile: what ``profile.read`` gave; empty without one.

    Raises:
        PlanError: for what is missing or cannot be.
    """
    assumed: list[str] = []

    def number(flag: str, read: Callable[[str], float], key: str = "", *, or_zero: bool = False) -> float | None:
        text = given[flag[2:].replace("-", "_")]
        if text is None:
            return profile.get(key)
        try:
            value = read(text)
        except PlanError as error:
            raise PlanError(f"{flag} {error}") from None
        if value < 0 or (value == 0 and not or_zero):
            raise PlanError(f"{flag} is {text}, and has to be {'0 or ' if or_zero else ''}above 0. {_like(flag)}")
        if value and not LEAST <= value <= MOST:
            raise PlanError(f"{flag} is {text}, and has to be between {LEAST:g} and {MOST:g}. {_like(flag)}")
        return value

    def or_else(value: _T | None, default: _T, words: str) -> _T:
        if value is None:
            assumed.append(words)
            return default
        return value

    runs: tuple[Run, ...] = profile.get("runs", ())
    parameters = number("--parameters", units.count, "parameters")
    step, rows = number("--step", units.time), number("--batch", units.count, "batch_rows")
    lacking = [
        flag
        for flag, value in (("--parameters", parameters), ("--step", step or runs or None), ("--batch", rows))
        if value is None
    ]
    if parameters is None or rows is None or lacking:
        words = f"{' and '.join(lacking)} {'are' if lacking[1:] else 'is'} missing"
        raise PlanError(f"{words}. Write {EXAMPLE}; or --profile FILE.json")
    optimizer = _named("--optimizer", given["optimizer"] or profile.get("optimizer"), OPTIMIZERS)
    precision = _named("--precision", given["precision"] or profile.get("precision"), PRECISIONS)
    optimizer = or_else(optimizer, "adamw", "AdamW")
    precision = or_else(precision, "fp32", "float32")
    network = profile.get("network", {})
    devices = number("--devices", units.count) or network.get("devices_per_host")
    devices = or_else(devices, 1, "1 device to a host")
    if devices != int(devices):
        raise PlanError(f"--devices is {devices:g}, and has to be a whole number. {_like('--devices')}")
    _same_ranks(runs, int(devices))
    within, between = _links(number, network, or_else)
    if within is None and devices > 1:
        assumed.append("devices of a host that reach each other as fast as hosts do")
    is_its = given["parameters"] is None and given["precision"] is None  # the model that was measured
    size = number("--gradient-bytes", units.size, "gradient_bytes" if is_its else "")
    size = size or parameters * PRECISIONS[precision].gradient
    bucket = number("--bucket-cap-mb", units.count)
    bucket = profile.get("bucket_bytes", CAP) if bucket is None else bucket * MIB
    if size / bucket > _MOST_BUCKETS:
        raise PlanError(f"{size:.3g} bytes in buckets of {bucket:.3g} are too many. Write a larger --bucket-cap-mb")
    work, batches = work_of(number, step, rows, runs, or_else), batches_of(number, rows, runs)
    algorithm = _named("--algorithm", given["algorithm"], (*ALGORITHMS, "fastest")) or "fastest"
    blocks = number("--blocks", units.count)
    activations = number("--activations", units.size, "activation_bytes")
    if activations and given["activations"] is None:  # of one of the profile's batches
        activations *= rows / profile["batch_rows"] * runs[0].batches / batches
    return PlannedJob(
        parameters=parameters,
        gradients=size,
        rows=rows,
        work=work,
        devices=int(devices),
        knows_between=between is not None,
        within=within or _either(between),
        between=between or _either(within),
        bucket=bucket,
        algorithm=algorithm,
        optimizer=optimizer,
        precision=precision,
        activations=activations,
        memory=number("--memory", units.size, "memory_bytes"),
        blocks=max(int(blocks or 12), 1),
        rate=number("--lr", units.count, "learning_rate"),
        critical=number("--critical-batch", units.count),
        batches=batches,
        whole=number("--global-batch", units.count),
        runs=runs,
    ), assumed


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


def _links(number: Any, network: Mapping[str, Any], or_else: Any) -> tuple[Link | None, Link | None]:
    """What is known of the ways within a host, and between hosts."""
    inside, outside = network.get("within", {}), network.get("between", {})
    bandwidth = number("--bandwidth", units.rate) or outside.get("bandwidth_bytes_per_second")
    bandwidth_within = number("--bandwidth-within", units.rate) or inside.get("bandwidth_bytes_per_second")
    if bandwidth is None and bandwidth_within is None:
        raise PlanError("--bandwidth is missing: bytes/s that a host reaches to others. Write --bandwidth 25e9")
    latency = number("--latency", units.time, or_zero=True)
    latency_within = number("--latency-within", units.time, or_zero=True)
    latency = outside.get("latency_seconds") if latency is None else latency
    latency_within = inside.get("latency_seconds") if latency_within is None else latency_within
    if latency is None and latency_within is None:
        latency = or_else(None, _LATENCY, "a latency of 10 us")
    latency = latency_within if latency is None else latency
    latency_within = latency if latency_within is None else latency_within
    return (
        None if bandwidth_within is None else Link(bandwidth_within, latency_within),
        None if bandwidth is None else Link(bandwidth, latency),
    )


def _either(link: Link | None) -> Link:
    assert link is not None
    return link


def ranks_of(given: Mapping[str, Any], its: PlannedJob) -> list[int]:
    """Give the numbers of ranks that are asked for.

    Raises:
        PlanError: for ranks that are not on whole hosts.
    """
    devices = its.devices
    below = [1 << power for power in range(1, devices.bit_length()) if 1 << power < devices]  # on a part of one host
    hosts = None if given["hosts"] is None else _several("--hosts", given["hosts"])
    if given["ranks"] is not None:
        ranks = _several("--ranks", given["ranks"])
        for each in ranks:
            if each > devices and each % devices:
                near = (each // devices + 1) * devices
                raise PlanError(f"{each} ranks are no whole hosts of {devices} devices. Write --ranks {near}")
            if hosts is not None and its.placed(each)[0] not in hosts:
                raise PlanError(
                    f"{each} ranks are {its.placed(each)[0]} hosts of {devices} devices, and --hosts is "
                    f"{given['hosts']}. Write one of --ranks and --hosts"
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


def _named(flag: str, name: str | None, known: Any) -> str | None:
    if name is not None and name not in known:
        raise PlanError(f"{flag} {name!r} is not known. Write {flag} with one of: {', '.join(known)}")
    return name


def _like(flag: str) -> str:
    found = re.search(rf"{flag} \S+", EXAMPLE)
    return f"Write for example {found[0]}" if found else f"python -m ddp_patch plan --help says what {flag} is"
