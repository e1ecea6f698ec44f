"""What a script's author can choose, from keyword arguments or DDP_PATCH_* variables."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .errors import OptionError
from .option_forms import FORMS, PARSERS, check_values, invalid

PREFIX = "DDP_PATCH_"
# Told by one of our processes to another.
_INTERNAL_VARIABLES = {
    "DDP_PATCH_AGENT",
    "DDP_PATCH_HEEDED",
    "DDP_PATCH_UNSAID",
    "DDP_PATCH_CALLER",
    "DDP_PATCH_DEBUGGER",
    "DDP_PATCH_KEY",
    "DDP_PATCH_VERIFY_RUN",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one session. A keyword argument wins over its variable."""

    nproc: int | None = None
    """Processes to start when nobody else started any. None: one per visible accelerator."""

    view: str = "global"
    """What the script sees: "global", whole batches, or "local", as under hand-written DDP, this rank's rows."""

    tail: str = "pad"
    """What the local view does with rows that do not go round: "pad" repeats some, as torch does; "exact" does not."""

    batch: str = "global"
    """Whose rows a script's batch size counts: "global", those of all ranks, or "per_device", those of each."""

    lr_scale: str | float | None = None
    """What learning rates are multiplied by where batches grow: "linear" (Adam's kind: the root), "sqrt", a number."""

    warmup: int | str | None = None
    """Steps, or "5 epochs", in which learning rates go from the script's to the scaled ones."""

    report: bool = False
    """Print ``ddp_patch.report()`` on stderr when the script ends."""

    sync_batchnorm: bool = True
    """Let BatchNorm see the whole batch, as it does on one process."""

    batch_dims: Mapping[str, int | None] = field(default_factory=dict)
    """Batch dimension of a module's plain-tensor arguments, by argument name (None: not a batch)."""

    accumulate: int | None = None
    """Backwards per optimizer step, where it is known beforehand. None: learned from the script."""

    bucket_cap_mb: float | str = 25.0
    """Size of DDP's gradient buckets in MiB; "auto" measures some in the first steps."""

    gradient_as_bucket_view: bool | str = False
    """Let ``.grad`` share the buckets' memory: saves a copy, but a ``.grad`` that the script keeps is overwritten.

    "auto" measures it, and leaves it off where the script keeps one.
    """

    static_graph: bool = False
    """Promise DDP that every step uses the same parameters in the same way."""

    find_unused_parameters: bool = False
    """Passed to DDP. Never needed: parameters that a step leaves unused are seen anyway."""

    comm_hook: str | None = None
    """Send gradients as "fp16", "bf16" or "powersgd": fewer bytes, and no longer one process's numbers.

    "fp16_ef" and "bf16_ef" send what was rounded off with the next gradients; "auto" measures which one pays.
    """

    check_every: int | None = None
    """Compare the ranks' parameters and gradients before every Nth step of each optimizer. None: never."""

    share_devices: bool = False
    """Let several ranks have one accelerator, to try a script out; they talk by gloo."""

    timeout: float = 1800.0
    """Seconds a collective may take before the job is ended with an error."""

    quiet: bool = False
    """Do not say on standard error, at the start, how many ranks run."""

    traceback: bool = False
    """Show ddp_patch's own frames in tracebacks of the script's errors."""

    trace: str | None = None
    """Folder in which every rank records where it was last, for ``python -m ddp_patch trace``. None: nowhere."""

    def __post_init__(self) -> None:
        """Check every value, so that a mistake is reported where it was written."""
        check_values(self)
        object.__setattr__(self, "batch_dims", dict(self.batch_dims))

    def _check_together(self) -> None:
        if self.warmup is not None and self.lr_scale is None:
            raise OptionError(
                f"warmup={self.warmup!r} goes from the script's learning rate to a scaled one, and lr_scale is not "
                "given. Write lr_scale='linear' beside it."
            )
        if self.lr_scale is not None and self.batch == "global":
            raise OptionError(
                f"lr_scale={self.lr_scale!r} is for batches that grow with the ranks, and batch='global' keeps their "
                "size. Write batch='per_device' beside it, or leave lr_scale out."
            )

    @classmethod
    def resolve(cls, keywords: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Options:
        """Combine keyword arguments with the DDP_PATCH_* variables.

        Raises:
            OptionError: for an unknown name, or a value that cannot be used.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        for name in keywords:
            if name not in names:
                raise OptionError(f"ddp_patch.enable() has no option {name!r}. {meant(name, names)}")
        environ = os.environ if environ is None else environ
        expected = {*map(variable, names), *_INTERNAL_VARIABLES}
        for name in environ:
            if name.startswith(PREFIX) and name not in expected:
                close = meant(name.removeprefix(PREFIX).lower(), [*names, "key"], variable)
                raise OptionError(f"{name} is set, and is no option. {close}")
        from_environ = {name: parse(name, environ[variable(name)]) for name in names if environ.get(variable(name))}
        options = cls(**{**from_environ, **keywords})
        options._check_together()
        return options

    def unlike(self, other: Options) -> str:
        """Write what is not as in other options, as it is passed to ``enable``."""
        pairs = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return ", ".join(f"{name}={value!r}" for name, value in pairs.items() if value != getattr(other, name))

    def contradict(self, options: Mapping[str, Any]) -> bool:
        """Tell whether an option that is not at its default has another value here."""
        current = {name: getattr(self, name) for name in options}
        return any(current[name] not in (value, getattr(type(self)(), name)) for name, value in options.items())

    def as_variables(self) -> dict[str, str]:
        """Give the variables that resolve to these options."""
        chosen = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        default = type(self)()
        return {
            variable(name): format_value(value) for name, value in chosen.items() if value != getattr(default, name)
        }


class EnableOptions(TypedDict, total=False):
    """The keyword arguments of ``enable``: the fields of ``Options``."""

    nproc: int | None
    view: str
    tail: str
    batch: str
    lr_scale: str | float | None
    warmup: int | str | None
    report: bool
    sync_batchnorm: bool
    batch_dims: Mapping[str, int | None]
    accumulate: int | None
    bucket_cap_mb: float | str
    gradient_as_bucket_view: bool | str
    static_graph: bool
    find_unused_parameters: bool
    comm_hook: str | None
    check_every: int | None
    share_devices: bool
    timeout: float
    quiet: bool
    traceback: bool
    trace: str | None


def meant(name: str, names: Sequence[str], written: Callable[[str], str] = str) -> str:
    """Say which name was probably meant, or which there are.

    Args:
        name: that is none of them.
        names: that there are.
        written: how they are written where this one was found.
    """
    close = difflib.get_close_matches(name, names, 1)
    return f"Did you mean {written(close[0])!r}?" if close else f"The options are {', '.join(map(written, names))}."


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
        value = PARSERS[name](text)
        Options(**{name: value})
    except (ValueError, KeyError):
        raise invalid(name, text, FORMS[name], source=source or variable(name)) from None
    return value


def format_value(value: Any) -> str:
    """Write an option's value the way ``parse`` reads it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return ",".join(f"{argument}={'none' if dim is None else dim}" for argument, dim in value.items())
    return str(value)
