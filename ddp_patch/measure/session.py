"""What surrounds the runs of one command: a folder of its own, signals that end all of it, files written whole."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import DdpPatchError
from ..verify.command import ended_by_signals
from ..verify.run_folder import PREFIX
from .arguments import Help
from .runs import MeasureError


def guarded(name: str, usage: str, work: Callable[[], int]) -> int:
    """Do a command's work, and give the exit code: 1 for a script that cannot be measured, 2 for what cannot be done.

    Args:
        name: of the command.
        usage: what ``--help`` shows.
        work: gives the exit code.
    """
    try:
        return work()
    except Help:
        sys.stdout.write(usage)
        return 0
    except MeasureError as error:
        sys.stderr.write(f"python -m ddp_patch {name}: {error}\n")
        return 1
    except DdpPatchError as error:
        sys.stderr.write(f"python -m ddp_patch {name}: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"python -m ddp_patch {name}: {error}. Is the disk full, or the folder gone?\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(f"python -m ddp_patch {name}: stopped; what it had started is ended.\n")
        return 128 + signal.SIGINT


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give an empty folder, which is gone afterwards, also where SIGTERM or a closed terminal ends the command."""
    root = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    try:
        with ended_by_signals():
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
