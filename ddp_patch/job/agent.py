"""Run N ranks of a command under torch.distributed.run and end as they end.

``python -m ddp_patch.job.agent 2 python script.py`` is what ``enable(nproc=2)`` turns a plain run into.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from . import one_host, os_exit
from .forwarded_signals import EndedBySignal, passed_on
from .key import make
from .orphans import clear_for_caller, end_with_caller
from .stopping import stop_ranks_too

_SIGNALS = "--signals-to-handle=SIGQUIT"  # the others are left to us


def main(argv: Sequence[str]) -> int:
    """Start the ranks, wait for them, and give back the exit code of the first one that failed."""
    # The rank that failed shows its own traceback; the agent's log would say it again at length.
    elastic = logging.getLogger("torch.distributed.elastic")  # loggers below it have levels of their own (torch 2.13)
    elastic.propagate = False
    elastic.addHandler(logging.NullHandler())
    nproc, *command = argv
    os.environ["DDP_PATCH_AGENT"] = "1"  # for the ranks
    make(os.environ)
    # --no-python: the command carries its own interpreter with its own flags.
    args = _parsed([*one_host.arguments(), f"--nproc-per-node={nproc}", _SIGNALS, "--no-python", command[0]])
    # Not through the parser: argparse looks for torchrun's options among the script's as well (Python 3.11).
    args.training_script_args = command[1:]
    stopped = False
    try:
        with passed_on(), os_exit.folder() as marks:
            end_with_caller()
            stop_ranks_too()
            return _run(args, marks)
    except EndedBySignal as error:
        stopped = True
        return 128 + error.number
    except SignalException as error:
        stopped = True
        return 128 + int(error.sigval)
    except KeyboardInterrupt:  # before the handlers are set
        return 128 + signal.SIGINT
    finally:
        clear_for_caller(command[-1], stopped)


def _parsed(arguments: list[str]) -> Any:
    """Parse torchrun's arguments without its variables, which are meant for a torchrun that the ranks may start."""
    of_torchrun = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("PET_")}
    try:
        return run.parse_args(arguments)
    finally:
        os.environ.update(of_torchrun)


def _run(args: argparse.Namespace, marks: Path) -> int:
    args.log_dir = str(marks / "torchelastic")  # which torch would leave behind in the temporary folder
    try:
        run.run(args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        # It could not say anything itself, and the ranks that could may not have come to it.
        if failure.exitcode > 0:
            sys.stderr.write(os_exit.words(marks, rank, failure.exitcode))
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        sys.stderr.write(f"ddp_patch: rank {rank} was ended by {name}{os_exit.said(marks, rank)}.\n")
        return 128 - failure.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
