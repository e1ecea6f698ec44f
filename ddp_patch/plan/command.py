"""``python -m ddp_patch plan``: from a description or a profile to what more ranks will bring."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from .arguments import job, ranks_of
from .options import parser
from .planned import plan
from .plot import draw
from .problems import PlanError
from .profile import read
from .scaling import SCALINGS
from .text import written


def command(argv: Sequence[str]) -> int:
    """Plan, and give the exit code: 0, or 2 for what nothing can be planned with."""
    try:
        options = vars(parser().parse_args(argv))
    except SystemExit as end:  # argparse has said why, or shown its help
        return 2 if end.code else 0
    try:
        profile = read(options["profile"]) if options["profile"] else {}
        its, assumed = job(options, profile)
        if not its.knows_between and options["ranks"] is None and options["hosts"] is None:
            assumed.append("one host (--bandwidth, the bytes/s that it reaches to others, is not known)")
        found = plan(its, ranks_of(options, its), _scalings(options["scaling"]), assumed)
        if options["plot"]:
            draw(found, options["plot"])
    except PlanError as error:
        sys.stderr.write(f"python -m ddp_patch plan: {error}\n")
        return 2
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if options["json"] else written(found))
    return 0


def _scalings(name: str | None) -> Sequence[str]:
    if name in (None, "both"):
        return SCALINGS
    if name not in SCALINGS:
        raise PlanError(f"--scaling {name!r} is not known. Write --scaling strong, weak or both")
    return (name,)
