"""Which values the options take, and how they are written as text."""

from __future__ import annotations

import re
from typing import Any

from .errors import OptionError

COMM_HOOKS = ("fp16", "bf16", "powersgd")
VIEWS = ("global", "local")
TAILS = ("pad", "exact")
BATCHES = ("global", "per_device")
LR_SCALES = ("linear", "sqrt")
_WARMUP = re.compile(r"(\d+(?:\.\d+)?) *(steps?|epochs?)")


def warmup_of(warmup: int | str | None) -> tuple[float, str]:
    """Read how long a warmup is.

    Returns:
        a number, 0 for none, of "steps" or of "epochs".

    Raises:
        OptionError: for anything else.
    """
    if warmup is None:
        return 0.0, "steps"
    text = f"{warmup} steps" if isinstance(warmup, int) else str(warmup)
    found = None if isinstance(warmup, bool) else _WARMUP.fullmatch(text)
    if found is None or not float(found[1]) > 0:
        raise invalid("warmup", warmup, FORMS["warmup"])
    return float(found[1]), found[2].rstrip("s") + "s"


def _parse_dims(text: str) -> dict[str, int | None]:
    pairs = (item.split("=", 1) for item in text.split(",") if item.strip())
    return {name.strip(): None if dim.strip().lower() == "none" else int(dim) for name, dim in pairs}


def _parse_flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        text.strip().lower()
    ]


FLAGS = (
    *("report", "sync_batchnorm", "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "share_devices"),
    *("quiet", "traceback"),
)
PARSERS: dict[str, Any] = {
    **dict.fromkeys(FLAGS, _parse_flag),
    "accumulate": int,
    "bucket_cap_mb": float,
    "comm_hook": str,
    "view": str,
    "tail": str,
    "batch": str,
    "lr_scale": lambda text: text if text in LR_SCALES else float(text),
    "warmup": lambda text: int(text) if text.isdigit() else text,
    "nproc": int,
    "batch_dims": _parse_dims,
    "timeout": float,
    "trace": str,
}
FORMS = {
    **dict.fromkeys(FLAGS, "0 or 1"),
    "accumulate": "a number of backwards per optimizer step of at least 1",
    "bucket_cap_mb": "a number of MiB above 0",
    "comm_hook": "'fp16', 'bf16' or 'powersgd'",
    "view": "'global' or 'local'",
    "tail": "'pad' or 'exact'",
    "batch": "'global' or 'per_device'",
    "lr_scale": "'linear', 'sqrt' or a number above 0",
    "warmup": "a number of steps above 0, or a text such as '5 epochs'",
    "nproc": "a process count of at least 1",
    "batch_dims": "a list such as mask=none,x=1",
    "timeout": "a number of seconds above 0, at most 30 days",
    "trace": "the path of a folder",
}


def is_no_int(value: object) -> bool:
    """Tell what is no whole number, which a bool is in Python."""
    return isinstance(value, bool) or not isinstance(value, int)


def invalid(name: str, value: object, wanted: str, source: str | None = None) -> OptionError:
    """Say that a value cannot be used.

    Args:
        name: of the option.
        value: that it was given.
        wanted: what it takes.
        source: where the value was written, if not as a keyword.
    """
    return OptionError(f"{source or name}={value!r} cannot be used: {name} takes {wanted}.")
