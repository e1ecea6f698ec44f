"""The command line of ``profile``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..measure import arguments

USAGE = """\
usage: python -m ddp_patch profile [options] (script.py | -m module) [args ...]
       python -m ddp_patch profile script.py --nproc 2 -- [args ...]

Runs a script on several ranks under ddp_patch, in a copy of the working folder, and ends it when steps are measured.
Says what a step goes to on each rank (computing, waiting for ranks, the loader, effects, the optimizer, Python), which
layers and gradient buckets cost most, and the two or three things to change. The script needs no change.

options:
  --nproc N           ranks (default: one for each accelerator, or 2)
  --steps N           optimizer steps that are clocked (default: 20)
  --warmup N          steps before them (default: 10)
  --traced N          steps after them in which torch's profiler runs (default: 3)
  --to-end            let the script go on to its end
  --timeout SECONDS   time that the run may take (default: 600)
  --out DIR           folder that gets index.html, trace.json and profile.json (default: ddp_patch-profile)
  --no-plot           a page without pictures, for which matplotlib is needed
  -h, --help          show this and exit

What the script prints goes to standard output, what profile says to standard error.
exit code: 0 measured, 1 the script failed, took too few steps or was not done in time, 2 the command cannot be done
"""
_VALUED = ("--nproc", "--steps", "--warmup", "--traced", "--timeout", "--out")


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What is asked."""

    script: Path
    module: str
    args: tuple[str, ...]
    ranks: int
    steps: int
    warmup: int
    traced: int
    goes_on: bool
    timeout: float
    out: Path
    draws: bool


def parse(argv: Sequence[str], accelerators: int) -> ProfileRequest:
    """Read a command line.

    Args:
        argv: without ``profile`` itself.
        accelerators: that are visible.

    Raises:
        OptionError: for what cannot be understood or done.
        Help: for ``--help``.
    """
    options, script, module, args = arguments.split("profile", argv, _VALUED, ("--to-end", "--no-plot"))
    nproc = options.get("--nproc", str(accelerators or 2))
    arguments.whole("--nproc", nproc, 2)
    draws = "--no-plot" not in options
    if draws:
        arguments.needs_matplotlib("profile", "--no-plot")
    return ProfileRequest(
        script=script,
        module=module,
        args=args,
        ranks=arguments.ranks("--nproc", nproc, accelerators)[0],
        steps=arguments.whole("--steps", options.get("--steps", "20"), 20, least=2),
        warmup=arguments.whole("--warmup", options.get("--warmup", "10"), 10),
        traced=arguments.whole("--traced", options.get("--traced", "3"), 3),
        goes_on="--to-end" in options,
        timeout=arguments.seconds("--timeout", options.get("--timeout", "600")),
        out=arguments.folder("--out", options.get("--out", "ddp_patch-profile")),
        draws=draws,
    )
