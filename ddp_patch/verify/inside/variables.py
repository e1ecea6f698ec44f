"""The order in which the variables of a script lead to objects."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterable
from types import FrameType
from typing import Any

from ...ledger import is_of_script


def places(wanted: Iterable[Any]) -> dict[int, int]:
    """Number objects by how near to the script's variables they are held, and then by the order of what holds them.

    The garbage collector lists objects in an order that depends on when it last ran, which differs between ranks.

    Returns:
        A number for each object's identity. What no variable leads to is left out.
    """
    missing = {id(each) for each in wanted}
    found: dict[int, int] = {}
    nearest: list[Any] = [vars(sys.modules["__main__"]), *_locals()] if missing else []
    seen = {id(vars(module)) for name, module in [*sys.modules.items()] if name.partition(".")[0] == "ddp_patch"}
    kept = []  # so that no identity is used again
    while missing and nearest:
        kept.append(nearest)
        further = []
        for each in nearest:
            if id(each) in missing:
                missing.discard(id(each))
                found[id(each)] = len(found)
            # Of a list, the garbage collector gives the last entry first.
            for held in each if type(each) in (list, tuple) else gc.get_referents(each):
                if id(held) not in seen:
                    seen.add(id(held))
                    further.append(held)
        nearest = further
    return found


def _locals() -> list[dict[str, Any]]:
    """Give the variables of the script's functions, outermost first: of those that run, and that an error has left.

    Before Python 3.13, a function keeps what is asked for here until it returns or is asked again.
    """
    running = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    left = [frame for frame, _ in traceback.walk_tb(sys.exc_info()[2])]
    return [dict(frame.f_locals) for frame in (*reversed(running), *left) if _has_own_variables(frame)]


def _has_own_variables(frame: FrameType) -> bool:
    return is_of_script(frame) and frame.f_locals is not frame.f_globals
