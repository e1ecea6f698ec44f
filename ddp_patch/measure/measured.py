"""Run a script as ``python`` would and clock its steps: ``python -m ddp_patch.measure.measured FILE script.py``.

``-m module`` instead of the script runs a module as ``python -m`` would. ``FILE`` holds a ``Wanted``. ``profile`` and
``scale`` start this, alone and on every rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType

from ..__main__ import _module_loader, _script_loader
from ..verify.recorded import leave_number_of_ranks
from .wanted import Wanted


def main(argv: Sequence[str]) -> None:
    """Run the script."""
    wanted = Wanted.read(argv[0])
    is_module = argv[1] == "-m"
    target, *args = argv[2:] if is_module else argv[1:]
    from ..verify.inside.record import Record  # noqa: PLC0415 — imports torch
    from ..verify.inside.settings import Settings  # noqa: PLC0415
    from ..verify.inside.writes import Writes  # noqa: PLC0415
    from .clock import Clock  # noqa: PLC0415

    sys.path.insert(0, os.getcwd())  # as python has a folder there; only now, since none of ours or torch's is in it
    record = Record(wanted.record, int(os.environ.get("RANK", "0")))
    # Large files of the user's, which the run's folder has links to, are copied before anybody writes to them.
    Writes(record, Settings(record="", folder=wanted.folder, linked=wanted.linked)).install()
    clock = Clock(record, wanted)
    clock.install()
    try:
        load, _ = (_module_loader if is_module else _script_loader)(target)
        leave_number_of_ranks()
        if wanted.enable:
            _enable()
        code, module = load()
        sys.argv = [str(vars(module)["__file__"]) if is_module else target, *args]
        sys.modules["__main__"] = module
        exec(code, vars(module))
    except SystemExit as error:
        clock.finish("exit", error)
        raise
    except BaseException as error:  # noqa: BLE001 — shown as Python shows it, once it is noted
        clock.finish("error", error)
        traceback = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        raise SystemExit(1) from None
    clock.finish("end", None)


def _enable() -> None:
    from .. import api  # noqa: PLC0415

    api.enable()


def _of_the_script(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main(sys.argv[1:])
