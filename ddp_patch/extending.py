"""What a script's author knows of functions and objects that ddp_patch does not: they stay on rows, or are rank 0's.

``ddp_patch.testing.check_rule`` tells whether what was said of a function is true.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from .errors import OptionError
from .signature import arguments_of
from .state import State

P = ParamSpec("P")
T = TypeVar("T")
Argument = str | int  # by name, or by position

KINDS = ("sum", "mean")


@dataclass(frozen=True)
class Rule:
    """What was said of a function."""

    function: Callable[..., Any]
    kind: str  # "rowwise", "sum" or "mean"
    dims: Mapping[Argument, int | None] | None = None
    out_dims: Any = 0

    @property
    def name(self) -> str:
        """As its author writes it."""
        return _name(self.function)

    def dim_of(self, position: int, name: str | None) -> Any:
        """Look up an argument: a dimension, None if it is no batch, "any" if nothing was said."""
        return "any" if self.dims is None else self.dims.get(position if name is None else name)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[Argument, str | None, Any]]:
        """List what a call is given: where it stands, its name if that is known, the value."""
        names = arguments_of(self.function).positional
        named = [names[position] if position < len(names) else None for position in range(len(args))]
        positions = [(position, name, value) for position, (name, value) in enumerate(zip(named, args, strict=True))]
        return [*positions, *((name, name, value) for name, value in kwargs.items())]


@overload
def register_rowwise(function: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def register_rowwise(
    function: None = None, /, *, dims: Mapping[Argument, int | None] | None = None, out_dims: Any = 0
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
@overload
def register_rowwise(
    function: Callable[P, T], /, *, dims: Mapping[Argument, int | None] | None = None, out_dims: Any = 0
) -> Callable[P, T]: ...
def register_rowwise(
    function: Any = None, /, *, dims: Mapping[Argument, int | None] | None = None, out_dims: Any = 0
) -> Any:
    """Say that a function keeps the rows of a batch apart, so that each rank calls it with its own.

    ``mylib.op = ddp_patch.register_rowwise(mylib.op)``, or as a decorator. Row i of its results may depend on row i of
    its batches alone, forward and backward, and on nothing that the ranks have different. A C++ or CUDA extension,
    which would be refused on batches, is called with plain tensors.

    Args:
        function: takes and gives tensors. A function of torch's (``torch.ops.my.op``) is also known by itself.
        dims: argument, by name or position -> the dimension of its rows; arguments that are left out, and None, are
            whole on every rank. By default every batch, along its own batch dimension.
        out_dims: dimension of the rows in every result; a tuple for each of several, None where a result has no rows
            and is the same on every rank.

    Returns:
        the function to call in its place: on plain tensors the same.

    Raises:
        OptionError: for what is no function.
        BatchError: when it is called, and gives another number of rows.
    """
    return _registered("register_rowwise", function, "rowwise", dims, out_dims)


def register_reduction(function: Any = None, /, *, kind: str, dims: Mapping[Argument, int | None] | None = None) -> Any:
    """Say that a function sums over the rows of a batch, or takes their mean, so that each rank does it for its own.

    ``my_loss = ddp_patch.register_reduction(my_loss, kind="mean")``, or as a decorator with ``kind``. The ranks'
    results are put together, by the same collective as ``F.mse_loss``'s; inside of a model's forward too.

    Args:
        function: takes tensors, gives one without rows.
        kind: "sum", or "mean" if every row weighs the same.
        dims: as for ``register_rowwise``.

    Returns:
        the function to call in its place.

    Raises:
        OptionError: for another kind, or what is no function.
    """
    if kind not in KINDS:
        raise OptionError(f"ddp_patch.register_reduction(kind={kind!r}): kind is 'sum' or 'mean'.")
    return _registered("register_reduction", function, kind, dims, None)


def rank_zero(function: Callable[P, T]) -> Callable[P, T]:
    """Have rank 0 alone call a function, and give all ranks what it got: a value, or an object to call methods of.

    For what acts outside of the script and that ddp_patch does not know: a message to a chat, a database, a tracker
    (``Tracker = ddp_patch.rank_zero(mylib.Tracker)``). Also as a decorator. Its errors are raised on every rank. With
    threads of the script's own, those of rank 0 act; in a dataset, whichever rank loads the row.

    Args:
        function: or a class.
    """
    if not callable(function):
        raise OptionError(f"ddp_patch.rank_zero({function!r}): pass a function or a class.")

    @functools.wraps(function, updated=())
    def call(*args: P.args, **kwargs: P.kwargs) -> T:

        session = State.session
        name = str(getattr(function, "__qualname__", function))
        return function(*args, **kwargs) if session is None else session.shared().call(name, function, args, kwargs)

    return call


def register_tracker(name: str) -> None:
    """Name a class or function of a library whose result rank 0 alone shall have, as ``wandb.init``'s.

    ``ddp_patch.register_tracker("mylib.tracking.Run")``: from then on, and before or after the library is imported,
    ``Run(...)`` is called on rank 0; all ranks call its methods, rank 0 acts, all get what it got.

    Args:
        name: of the class or function, with its module's.

    Raises:
        OptionError: for a name without a module.
    """
    module, _, attribute = name.rpartition(".")
    if not module or not all(part.isidentifier() for part in name.split(".")):
        raise OptionError(f"ddp_patch.register_tracker({name!r}): write module and name, as 'mylib.tracking.Run'.")
    if (module, attribute) in trackers:
        return
    trackers.append((module, attribute))

    if State.session is not None:
        from .patches.shared import tracker  # noqa: PLC0415 — imports torch, which is there

        State.session.plant([tracker(module, attribute)])


trackers: list[tuple[str, str]] = []  # module and name, in the order in which they were registered


def rule_of(function: Any) -> Rule | None:
    """Look up what was said of a function."""
    return _operators.get(function) if _is_operator(function) else getattr(function, "_ddp_patch_rule", None)


_operators: dict[Any, Rule] = {}


def _is_operator(function: Any) -> bool:
    return type(function).__module__ == "torch._ops"  # torch.ops.my.op, which is called as it is


def _name(function: Any) -> str:
    if _is_operator(function):
        return f"torch.ops.{function}"
    if isinstance(owner := getattr(function, "__self__", None), type):  # Cube.apply, not Function.apply
        return f"{owner.__qualname__}.{function.__name__}"
    return str(getattr(function, "__qualname__", getattr(function, "__name__", function)))


def dims_by_name(door: str, function: Any, dims: Mapping[Argument, int | None] | None) -> dict[Argument, Any] | None:
    """Check what was said of a function's arguments, and have them by name where that is known.

    Raises:
        OptionError: for an argument that the function does not have, or what is no dimension.
    """
    if dims is None:
        return None
    named, arguments = {}, arguments_of(function)
    wrong = f"ddp_patch.{door}(dims={dims!r})"
    for argument, dim in dims.items():
        if not isinstance(argument, (str, int)) or not _is_dim(dim):
            raise OptionError(
                f"{wrong}: a dict such as {{'x': 0, 'mask': 1, 'weight': None}}, of dimensions counted from 0."
            )
        if isinstance(argument, str):
            if arguments.has_others and not arguments.named:
                raise OptionError(
                    f"{wrong}: how {_name(function)} names its arguments is not known. Write positions: {{0: 0}}."
                )
            is_there = argument in arguments.named
        else:
            is_there = 0 <= argument < len(arguments.positional)
        if not is_there and not arguments.has_others:
            raise OptionError(
                f"{wrong}: {_name(function)} has no argument {argument!r}. It has {', '.join(arguments.positional)}."
            )
        named[arguments.positional[argument] if isinstance(argument, int) and is_there else argument] = dim
    return named


def _is_dim(dim: Any) -> bool:
    return dim is None or (isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0)


def _registered(door: str, function: Any, kind: str, dims: Any, out_dims: Any) -> Any:
    if function is None:
        return lambda later: _registered(door, later, kind, dims, out_dims)
    if not callable(function):
        raise OptionError(f"ddp_patch.{door}({function!r}): pass a function.")
    if not all(map(_is_dim, out_dims if isinstance(out_dims, (tuple, list)) else [out_dims])):
        raise OptionError(
            f"ddp_patch.{door}(out_dims={out_dims!r}): a dimension counted from 0, or one for each result."
        )
    rule = Rule(function, kind, dims_by_name(door, function, dims), out_dims)
    if _is_operator(function):
        from .batch.registered import know  # noqa: PLC0415 — imports torch, which its author has

        _operators[function] = rule
        know(function, rule)

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        from .batch.registered import called  # noqa: PLC0415 — imports torch, which its author has
        from .diagnosis.registered_calls import RegisteredCall  # noqa: PLC0415

        counted = RegisteredCall(rule.name, args, kwargs)
        result = called(call, rule, args, kwargs)
        counted.ended()
        return result

    call._ddp_patch_rule = rule  # type: ignore[attr-defined]
    return call


def batch_dim_of_result(rule: Rule, index: int) -> Any:
    """Look up the dimension of the rows in one of a function's results."""
    return rule.out_dims[index] if isinstance(rule.out_dims, (tuple, list)) else rule.out_dims
