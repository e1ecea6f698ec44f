"""What a script's author can choose, from keyword arguments or DDP_PATCH_* variables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import OptionError

PREFIX = "DDP_PATCH_"
_LONGEST = 30 * 24 * 3600.0  # seconds; torch keeps timeouts as timedeltas


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one session. A keyword argument wins over its variable."""

    nproc: int | None = None
    """Processes to start when nobody else started any. None: one per visible accelerator."""

    report: bool = False
    """Print ``ddp_patch.report()`` on stderr when the script ends."""

    sync_batchnorm: bool = True
    """Let BatchNorm see the whole batch, as it does on one process."""

    batch_dims: Mapping[str, int | None] = field(default_factory=dict)
    """Batch dimension of a module's plain-tensor arguments, by argument name (None: not a batch)."""

    timeout: float = 1800.0
    """Seconds a collective may take before the job is ended with an error."""

    def __post_init__(self) -> None:
        """Check every value, so that a mistake is reported where it was written."""
        if self.nproc is not None and (_is_no_int(self.nproc) or self.nproc < 1):
            raise _invalid("nproc", self.nproc, "a process count of at least 1")
        for name in ("report", "sync_batchnorm"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, getattr(self, name), "True or False")
        number = isinstance(self.timeout, (int, float)) and not isinstance(self.timeout, bool)
        if not number or not 0 < self.timeout <= _LONGEST:
            raise _invalid("timeout", self.timeout, _FORMS["timeout"])
        if not isinstance(self.batch_dims, Mapping):
            raise _invalid("batch_dims", self.batch_dims, "a dict such as {'mask': None, 'x': 1}")
        for argument, dim in self.batch_dims.items():
            if not isinstance(argument, str) or (dim is not None and _is_no_int(dim)):
                raise _invalid("batch_dims", self.batch_dims, "a dict from argument names to a dimension or None")
        object.__setattr__(self, "batch_dims", dict(self.batch_dims))

    @classmethod
    def resolve(cls, given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Options:
        """Combine keyword arguments with the DDP_PATCH_* variables.

        Raises:
            OptionError: for an unknown name, or a value that cannot be used.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                import difflib  # noqa: PLC0415 — only on the way to an error

                close = difflib.get_close_matches(name, names, 1)
                hint = f"Did you mean {close[0]!r}?" if close else f"The options are {', '.join(names)}."
                raise OptionError(f"ddp_patch.enable() has no option {name!r}. {hint}")
        environ = os.environ if environ is None else environ
        from_environ = {name: parse(name, environ[variable(name)]) for name in names if environ.get(variable(name))}
        return cls(**{**from_environ, **given})


def variable(name: str) -> str:
    """Name the environment variable of an option."""
    return PREFIX + name.upper()


def parse(name: str, text: str, source: str | None = None) -> Any:
    """Read the text of an option.

    Args:
        name: the option.
        text: what was written.
        source: where it was written, for the message; the DDP_PATCH_* variable by default.

    Raises:
        OptionError: when the text is no value of that option.
    """
    try:
        value = _PARSERS[name](text)
        Options(**{name: value})
    except (ValueError, KeyError) as error:
        raise _invalid(name, text, _FORMS[name], source=source or variable(name)) from error
    return value


def format_value(value: Any) -> str:
    """Write an option's value the way ``parse`` reads it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return ",".join(f"{argument}={'none' if dim is None else dim}" for argument, dim in value.items())
    return str(value)


def _parse_dims(text: str) -> dict[str, int | None]:
    pairs = (item.split("=", 1) for item in text.split(",") if item.strip())
    return {name.strip(): None if dim.strip().lower() == "none" else int(dim) for name, dim in pairs}


def _parse_flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        text.strip().lower()
    ]


_PARSERS: dict[str, Any] = {
    "nproc": int,
    "report": _parse_flag,
    "sync_batchnorm": _parse_flag,
    "batch_dims": _parse_dims,
    "timeout": float,
}
_FORMS = {
    "nproc": "a process count of at least 1",
    "report": "0 or 1",
    "sync_batchnorm": "0 or 1",
    "batch_dims": "a list such as mask=none,x=1",
    "timeout": "a number of seconds above 0, at most 30 days",
}


def _is_no_int(value: object) -> bool:
    return isinstance(value, bool) or not isinstance(value, int)


def _invalid(name: str, value: object, wanted: str, source: str | None = None) -> OptionError:
    return OptionError(f"{source or name}={value!r} cannot be used: {name} takes {wanted}.")
