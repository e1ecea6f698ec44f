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
from ..job import hosts, interfaces, launcher, reaching
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
        found = {**_alone(None), "launcher": facts.started_by(os.environ), "problem": str(error)}
    if found is None:  # another rank shows it
        return 0
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if argv else written(found))
    sys.stdout.flush()
    return 1 if found["problem"] else 0


def _look() -> dict[str, Any] | None:
    told = launcher.detect(os.environ)
    timeout = min(Options.resolve({}).timeout, _PATIENCE)
    if told is None or told.world_size == 1:
        return _alone(told)
    own = facts.own(told)
    own["port_by"] = facts.port_by(told)
    os.environ.update(told.variables())
    store = meet(told, timeout)
    own["rank_0_at"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    seen = hosts.exchange(hosts.look(told.local_rank), store, told, timeout)
    reaching.choose_interface(seen, told.rank)
    names = [f"ddp_patch/env/{rank}" for rank in range(told.world_size)]
    own["interface"] = interfaces.named()
    store.set(names[told.rank], json.dumps(own))
    if told.rank:
        with contextlib.suppress(RuntimeError):  # rank 0 is gone, and with it its store
            _wait(store, "ddp_patch/env/shown", _LEAVE_WAIT)
        return None
    for name in names:
        _wait(store, name, timeout)
    each = [json.loads(store.get(name)) for name in names]
    placed, problem = _placed(told, seen)
    store.set("ddp_patch/env/shown", "1")
    return _joined(told, seen, each, placed, problem)


def _placed(told: launcher.Told, seen: list[hosts.Seen]) -> tuple[list[hosts.Place | None], str]:
    """Where each rank is, and why it may not be there."""
    problem = ""
    try:
        hosts.place(told, seen, Options.resolve({}).share_devices)
    except DdpPatchError as error:
        problem = str(error)
    try:
        return [hosts.place(dataclasses.replace(told, rank=r), seen, True) for r in range(told.world_size)], problem
    except DdpPatchError:
        return [None] * told.world_size, problem


def _joined(
    told: launcher.Told,
    seen: list[hosts.Seen],
    each: list[dict[str, Any]],
    placed: list[hosts.Place | None],
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
        "launcher": told.launcher.name,
        "inside_of": each[0]["launchers"][1:],
        "world_size": told.world_size,
        "backend": facts.backend(seen[0].kind, shares),
        "rank_0_at": each[0]["rank_0_at"],
        "port_by": each[0]["port_by"],
        "ranks": ranks,
        "problem": problem or facts.different_versions(ranks),
    }


def _alone(told: launcher.Told | None) -> dict[str, Any]:
    seen, here = hosts.look(None), facts.own(told)
    count = max(len(seen.devices), 1)
    own = {
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
        "launcher": "nobody" if told is None else told.launcher.name,
        "inside_of": here["launchers"][1:],
        "world_size": 1,
        "would_start": 1 if told is not None else Options.resolve({}).nproc or count,
        "backend": facts.backend(seen.kind, False),
        "ranks": [own],
        "problem": seen.error or seen.misnamed,
    }


def _wait(store: Any, key: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not store.check([key]) and time.monotonic() < end:
        time.sleep(0.02)
