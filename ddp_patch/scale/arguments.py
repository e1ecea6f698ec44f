"""The command line of ``scale``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError
from ..measure import arguments

SCALINGS = ("strong", "weak")
USAGE = """\
usage: python -m ddp_patch scale [options] (script.py | -m module) [args ...]
       python -m ddp_patch scale script.py --ranks 1,2,4 -- [args ...]

Runs a script alone and on several ranks under ddp_patch, each in a copy of the working folder, and ends each run when
its steps are measured. Says what a step takes, how many times as fast that is, and the efficiency: with the script's
batch (strong scaling), and with that batch for each rank (weak scaling). The script needs no change.

options:
  --ranks N[,N...]    numbers of ranks (default: 1,2; one rank always runs)
  --scaling NAME      strong (the batch stays), weak (it grows) or both (default: both)
  --steps N           optimizer steps that are measured in each run (default: 30)
  --warmup N          steps before them (default: 10)
  --repeat N          runs of each kind, in turn (default: 1)
  --timeout SECONDS   time that one run may take (default: 600)
  --out DIR           folder that gets scale.json and scale.png (default: ddp_patch-scale)
  --no-plot           draw nothing, for which matplotlib is needed
  -h, --help          show this and exit

exit code: 0 measured, 1 the script failed, took too few steps or was not done in time, 2 the command cannot be done
"""
_VALUED = ("--ranks", "--scaling", "--steps", "--warmup", "--repeat", "--timeout", "--out")


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """What is asked."""

    script: Path
    module: str
    args: tuple[str, ...]
    ranks: tuple[int, ...]  # 1 among them
    scalings: tuple[str, ...]
    steps: int
    warmup: int
    repeat: int
    timeout: float
    out: Path
    draws: bool


def parse(argv: Sequence[str], accelerators: int) -> ScaleRequest:
    """Read a command line.

    Args:
        argv: without ``scale`` itself.
        accelerators: that are visible.

    Raises:
        OptionError: for what cannot be understood or done.
        Help: for ``--help``.
    """
    options, script, module, args = arguments.split("scale", argv, _VALUED, ("--no-plot",))
    ranks = arguments.ranks("--ranks", options.get("--ranks", "1,2"), accelerators)
    if max(ranks) == 1:
        raise OptionError("--ranks 1 leaves nothing to compare. Write --ranks 1,2")
    scaling = options.get("--scaling", "both")
    if scaling not in (*SCALINGS, "both"):
        raise OptionError(f"--scaling {scaling} is not known. Write --scaling strong, weak or both")
    draws = "--no-plot" not in options
    if draws:
        arguments.needs_matplotlib("scale", "--no-plot")
    return ScaleRequest(
        script=script,
        module=module,
        args=args,
        ranks=tuple(sorted({1, *ranks})),
        scalings=SCALINGS if scaling == "both" else (scaling,),
        steps=arguments.whole("--steps", options.get("--steps", "30"), 30, least=2),
        warmup=arguments.whole("--warmup", options.get("--warmup", "10"), 10),
        repeat=arguments.whole("--repeat", options.get("--repeat", "1"), 3),
        timeout=arguments.seconds("--timeout", options.get("--timeout", "600")),
        out=arguments.folder("--out", options.get("--out", "ddp_patch-scale")),
        draws=draws,
    )
