"""One table for all ranks: they meet as they would for ``enable()``, and rank 0 prints what each found."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..errors import DdpPatchError
from ..job import hosts, interfaces, key, launcher, reaching, relaunch, software, views
from ..job.meeting import meet
from ..options import Options
from . import facts
from .table import written

USAGE = """\
usage: [launcher ...] python -m ddp_patch env [--json]

Shows who started this process, as which rank of how many, on which hosts, devices and interfaces, and who set what.
Under a launcher rank 0 shows it once, for all ranks: mpirun -np 2 python -m ddp_patch env
"""
_PATIENCE = 60.0  # seconds for the other ranks, which start at the same time
_LEAVE_WAIT = 10.0  # seconds, in which rank 0 writes


def command(argv: Sequence[str]) -> int:
    """Run ``python -m ddp_patch env`` and give its exit code: 0 if ranks could train here, 1 if not."""
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if list(argv) not in ([], ["--json"]):
        sys.stderr.write(f"python -m ddp_patch env: it takes --json, and no {' '.join(argv)}\n")
        return 2
    try:
        found = _look()
    except DdpPatchError as error:
        found = {**_alone(None, str(error)), "launcher": facts.started_by(os.environ)}
    if found is None:  # another rank shows it
        return 0
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if argv else written(found))
    sys.stdout.flush()
    return 1 if found["problem"] else 0


def _look() -> dict[str, Any] | None:
    launch = launcher.detect(os.environ)
    options = Options.resolve({})
    timeout = min(options.timeout, _PATIENCE)
    if launch is not None:
        relaunch.refuse_other_count(options.nproc, launch.world_size)
    if launch is None or launch.world_size == 1:
        return _alone(launch)
    local = facts.collect(launch)
    local["port_by"] = facts.port_by(launch)
    os.environ.update(launch.variables())
    store = meet(launch, timeout)
    local["rank_0_at"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    offer = key.Offer(launch.rank)
    look = dataclasses.replace(hosts.look(launch.local_rank), key=offer.message)
    seen = views.told_by_all(look, store, launch, timeout)
    reaching.choose_interface(seen, launch.rank)
    names = [f"ddp_patch/env/{rank}" for rank in range(launch.world_size)]
    local["interface"] = interfaces.named()
    store.set(names[launch.rank], json.dumps(local))
    if launch.rank:
        with contextlib.suppress(RuntimeError):  # rank 0 is gone, and with it its store
            _wait(store, "ddp_patch/env/shown", _LEAVE_WAIT)
        return None
    for name in names:
        _wait(store, name, timeout)
    each = [json.loads(store.get(name)) for name in names]
    problem = _problem(launch, seen, [its["order"] for its in each], offer, options.share_devices)
    offer.close()
    store.set("ddp_patch/env/shown", "1")
    return _joined(launch, seen, each, _placed(launch, seen), problem)


def _problem(
    launch: launcher.LaunchInfo, seen: list[hosts.HostView], orders: list[str], offer: key.Offer, may_share: bool
) -> str:
    """Say why ``enable()`` would refuse these ranks, as it does, but for the script, which is none here."""
    runs = [
        (its.name, (*(pair for pair in its.software if pair[0] != software.SCRIPT), (software.ORDER, order)))
        for its, order in zip(seen, orders, strict=True)
    ]
    try:
        software.refuse_others(runs)
        hosts.place(launch, seen, may_share)
        offer.agreed([its.key for its in seen])
    except DdpPatchError as error:
        return str(error)
    return ""


def _placed(launch: launcher.LaunchInfo, seen: list[hosts.HostView]) -> list[hosts.RankLocation | None]:
    """Where each rank is, if that can be told."""
    try:
        return [hosts.place(dataclasses.replace(launch, rank=r), seen, True) for r in range(launch.world_size)]
    except DdpPatchError:
        return [None] * launch.world_size


def _joined(
    launch: launcher.LaunchInfo,
    seen: list[hosts.HostView],
    each: list[dict[str, Any]],
    placed: list[hosts.RankLocation | None],
    problem: str,
) -> dict[str, Any]:
    ranks = []
    for rank, (its, here, place) in enumerate(zip(seen, each, placed, strict=True)):
        device = "unknown" if place is None else "cpu" if place.device is None else f"{its.kind}:{place.device}"
        placement = place and place.placement
        ranks.append(
            {
                "rank": rank,
                "host": its.name,
                "pid": here["pid"],
                "local_rank": placement and placement.local_rank,
                "local_world_size": placement and placement.local_world_size,
                "device": device,
                "interface": here["interface"],
                "folder": here["folder"],
                "versions": here["versions"],
                "set_by": here["set_by"],
                "key": here["key"],
            }
        )
    shares = any(place is not None and place.shares for place in placed)
    return {
        "launcher": launch.launcher.name,
        "inside_of": each[0]["launchers"][1:],
        "world_size": launch.world_size,
        "backend": facts.backend(seen[0].kind, shares),
        "rank_0_at": each[0]["rank_0_at"],
        "port_by": each[0]["port_by"],
        "ranks": ranks,
        "problem": problem,
    }


def _alone(launch: launcher.LaunchInfo | None, problem: str = "") -> dict[str, Any]:
    seen, here = hosts.look(None), facts.collect(launch)
    problem = problem or seen.error or seen.misnamed
    count = 1
    if launch is None and not problem:
        try:
            options = Options.resolve({})
            count = relaunch.worker_count(options.nproc, len(seen.devices), options.share_devices)
        except DdpPatchError as error:
            problem = str(error)
    row = {
        "rank": 0,
        "host": seen.name,
        "pid": here["pid"],
        "local_rank": 0,
        "local_world_size": 1,
        "device": "cpu" if not seen.devices else seen.kind,
        "interface": interfaces.named(),
        "folder": here["folder"],
        "versions": here["versions"],
        "set_by": here["set_by"],
        "key": here["key"],
    }
    return {
        "launcher": "nobody" if launch is None else launch.launcher.name,
        "inside_of": here["launchers"][1:],
        "world_size": 1,
        "would_start": count,
        "backend": facts.backend(seen.kind, False),
        "ranks": [row],
        "problem": problem,
    }


def _wait(store: Any, key: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not store.check([key]) and time.monotonic() < end:
        time.sleep(0.02)
