"""One rank of a call: ``python -m ddp_patch.remote.rank folder``, under torch's agent."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from ..job.orphans import end_with_launcher


def main(folder: Path) -> None:
    """Do what the folder says, and leave there what it gave."""
    end_with_launcher()
    number = int(os.environ["RANK"])
    tracked: list[Any] = []  # what is the caller's own, once it has come

    def leave(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        _write(folder / f"error.{number}", parcel.pack_error(kind, error, where, number, tracked))

    found, packed = pickle.loads((folder / "call").read_bytes())
    sys.path[:] = found["path"]
    from torch.optim import Optimizer  # noqa: PLC0415

    from .. import api  # noqa: PLC0415 — found where the caller finds it
    from ..state import State  # noqa: PLC0415
    from . import changes, failing, logs, parcel, surroundings  # noqa: PLC0415 — imports torch

    sys.excepthook = leave  # shown by the caller
    os.environ.pop("DDP_PATCH_CALLER", None)
    surroundings.set_up(found)
    surroundings.set_state(found["state"])
    try:
        with api.enable(**found["options"]):
            function, args, kwargs, tracked[:] = parcel.unpack(packed)
            logs.set_up(found["loggers"])  # modules that were imported for the call may have done so already
            for each in tracked:
                if isinstance(each, Optimizer) and State.session is not None:
                    State.session.adopt(each)
            before = changes.note(tracked)
            back = parcel.going_back(tracked)
            try:
                result = function(*args, **kwargs)
            except (Exception, SystemExit) as error:
                if State.joined is not None and failing.alike(State.joined, error):
                    changed = parcel.pack_changes(back, changes.changes(tracked, before))
                    with api.per_rank():
                        if number == 0:
                            _write(folder / "changed", changed)
                    failing.wait_until_left(State.joined)
                raise
            changed = parcel.pack_changes(back, changes.changes(tracked, before))  # on every rank: rows are gathered
            packed_result, refused = parcel.pack_result(back, function, result)  # likewise
    except SystemExit as error:
        leave(type(error), error, error.__traceback__)
        raise
    if number == 0:
        _write(folder / "changed", changed)
        _write(folder / "result", packed_result)
    if refused is not None:
        raise refused


def _write(path: Path, what: bytes) -> None:
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(what)
    beside.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
