"""What each rank sees of its host and accelerators, exchanged and compared before the ranks connect."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from ..errors import LaunchError
from . import attempt, hosts, reaching, software
from .key import Offer
from .launcher import LaunchInfo
from .siblings import Siblings, without_store
from .store_waits import Waiting

_TELL_WAIT = 2.0  # seconds, in which the others read what this rank left, where the store is its own
_READ_WAIT = 30.0  # seconds, in which they do, when all have come


def exchange(offer: Offer, store: Any, info: LaunchInfo, timeout: float) -> list[hosts.HostView]:
    """Give what each rank sees, entry r for rank r, and have gloo use the interface that leads to the others.

    Args:
        offer: of this rank, for the key of the job; it travels along.
        store: of the job.
        info: from the launcher.
        timeout: seconds to wait for the others.

    Raises:
        LaunchError: naming the ranks that do not come, or those that run other software.
    """
    view = dataclasses.replace(hosts.look(info.local_rank), key=offer.message)
    seen = told_by_all(view, store, info, timeout)
    # A launcher's own process keeps the order that it has: see say_orders.
    orders = [() if info.launcher.keeps else ((software.ORDER, its.order),) for its in seen]
    software.refuse_others([(its.name, its.software + order) for its, order in zip(seen, orders, strict=True)])
    reaching.choose_interface(seen, info.rank)
    return seen


def told_by_all(view: hosts.HostView, store: Any, info: LaunchInfo, timeout: float) -> list[hosts.HostView]:
    """Tell all ranks what each sees; entry r is what rank r does. Five requests to the store, and waiting.

    Args:
        view: what this rank sees.
        store: of the job.
        info: from the launcher.
        timeout: seconds to wait for the others.

    Raises:
        LaunchError: naming the ranks that do not come.
    """
    seen = f"ddp_patch/seen/{attempt.name()}"
    store.append(seen, f"{json.dumps([info.rank, dataclasses.asdict(view)])}\n")
    if store.add(f"{seen}/came", 1) == info.world_size:
        store.set(f"{seen}/all", "[]")  # nobody is missing
    siblings = Siblings(info)
    waiting = Waiting(store, siblings.has_lost_one)
    views: dict[int, dict[str, Any]] = {}
    try:
        end = time.monotonic() + timeout
        have_come = waiting.get(f"{seen}/all", timeout)
        if have_come is None:
            lost = view.name if time.monotonic() < end else ""
            missing = sorted({*range(info.world_size)} - _told(store, seen).keys())
            report = json.dumps([missing, lost]) if missing else "[]"
            have_come = store.compare_set(f"{seen}/all", "", report)  # the others name them as well
            if info.rank == 0 and missing:
                time.sleep(_TELL_WAIT)
        if have_come == b"[]":
            views = _told(store, seen)
            if store.add(f"{seen}/read", 1) == info.world_size:
                store.set(f"{seen}/read/all", "1")
            # What rank 0 reads may end it, and with it the store.
            if info.rank == 0 and waiting.get(f"{seen}/read/all", _READ_WAIT) is not None:
                for entry in (seen, *(f"{seen}/{name}" for name in ("came", "all", "read", "read/all"))):
                    store.delete_key(entry)
    except RuntimeError as error:
        raise without_store(info) from error
    finally:
        waiting.close()
    if have_come != b"[]":
        missing, lost = json.loads(have_come)
        raise LaunchError(
            f"Rank {info.rank} on {view.name} waited {'in vain' if lost else f'{timeout:g} seconds'} for "
            f"{hosts.name_ranks(missing)}, of {info.world_size}, which did not come to ddp_patch.enable()"
            f"{f': one that was started on {lost} has ended' if lost else ''}. Look at what they printed."
        )
    return [_read(views[rank]) for rank in range(info.world_size)]


def _told(store: Any, seen: str) -> dict[int, dict[str, Any]]:
    """Read what ranks have left so far, by their numbers."""
    return dict(json.loads(line) for line in store.get(seen).splitlines())


def _read(fields: dict[str, Any]) -> hosts.HostView:
    """Read what a rank left, whatever version of this package it has."""
    names = {field.name for field in dataclasses.fields(hosts.HostView)}
    its = {name: value for name, value in fields.items() if name in names}
    its |= {name: tuple(its[name]) for name in ("devices", "cards") if name in its}
    pairs = tuple((name, what) for name, what in its.get("software", ()))
    return hosts.HostView(**{**its, "software": pairs})
