"""Which values the options take, and how they are written as text."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from .errors import OptionError

AUTO = "auto"  # chosen by measurement
COMM_HOOKS = ("fp16", "bf16", "fp16_ef", "bf16_ef", "powersgd", AUTO)
VIEWS = ("global", "local")
TAILS = ("pad", "exact")
BATCHES = ("global", "per_device")
LR_SCALES = ("linear", "sqrt")
_LONGEST = 30 * 24 * 3600.0  # seconds; torch keeps timeouts as timedeltas
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
    *("report", "sync_batchnorm", "static_graph", "find_unused_parameters", "share_devices", "quiet", "traceback"),
)
PARSERS: dict[str, Any] = {
    **dict.fromkeys(FLAGS, _parse_flag),
    "accumulate": int,
    "bucket_cap_mb": lambda text: text if text == AUTO else float(text),
    "gradient_as_bucket_view": lambda text: text if text == AUTO else _parse_flag(text),
    "comm_hook": str,
    "check_every": int,
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
    "bucket_cap_mb": "a number of MiB above 0. Write bucket_cap_mb='auto' to have it chosen by measurement",
    "gradient_as_bucket_view": ("True or False. Write gradient_as_bucket_view='auto' to have it chosen by measurement"),
    "comm_hook": (
        "'fp16', 'bf16', 'fp16_ef', 'bf16_ef' or 'powersgd'. Write comm_hook='auto' to have it chosen by measurement"
    ),
    "check_every": "a number of optimizer steps of at least 1",
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


def check_values(options: Any) -> None:
    """See that each option has a value that it takes.

    Raises:
        OptionError: naming the option and the value.
    """
    for name in ("nproc", "accumulate", "check_every"):
        value = getattr(options, name)
        if value is not None and (is_no_int(value) or value < 1):
            raise invalid(name, value, FORMS[name])
    for name, choices in (("view", VIEWS), ("tail", TAILS), ("batch", BATCHES), ("comm_hook", (None, *COMM_HOOKS))):
        if getattr(options, name) not in choices:
            raise invalid(name, getattr(options, name), FORMS[name])
    scale, cap = options.lr_scale, options.bucket_cap_mb
    if scale is not None and scale not in LR_SCALES and not _is_between(scale, math.inf):
        raise invalid("lr_scale", scale, FORMS["lr_scale"])
    warmup_of(options.warmup)
    if cap != AUTO and not _is_between(cap, 1 << 20):
        raise invalid("bucket_cap_mb", cap, FORMS["bucket_cap_mb"])
    view = options.gradient_as_bucket_view
    if not isinstance(view, bool) and view != AUTO:
        raise invalid("gradient_as_bucket_view", view, FORMS["gradient_as_bucket_view"])
    for name in FLAGS:
        if not isinstance(getattr(options, name), bool):
            raise invalid(name, getattr(options, name), "True or False")
    if not _is_between(options.timeout, math.nextafter(_LONGEST, math.inf)):
        raise invalid("timeout", options.timeout, FORMS["timeout"])
    if options.trace is not None and (not isinstance(options.trace, (str, os.PathLike)) or not str(options.trace)):
        raise invalid("trace", options.trace, FORMS["trace"])
    _check_dims(options.batch_dims)


def _is_between(value: object, above: float) -> bool:
    """Tell a number above 0 and below another one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < above


def _check_dims(dims: Any) -> None:
    if not isinstance(dims, Mapping):
        raise invalid("batch_dims", dims, "a dict such as {'mask': None, 'x': 1}")
    for argument, dim in dims.items():
        if not isinstance(argument, str) or (dim is not None and is_no_int(dim)):
            raise invalid("batch_dims", dims, "a dict from argument names to a dimension or None")
