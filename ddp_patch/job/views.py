"""What each rank sees of its host and accelerators, exchanged and compared before the ranks connect."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import hosts, reaching, software
from .key import Offer
from .launcher import LaunchInfo


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
    seen = hosts.exchange(view, store, info, timeout)
    # A launcher's own process keeps the order that it has: see say_orders.
    orders = [() if info.launcher.keeps else ((software.ORDER, its.order),) for its in seen]
    software.refuse_others([(its.name, its.software + order) for its, order in zip(seen, orders, strict=True)])
    reaching.choose_interface(seen, info.rank)
    return seen
