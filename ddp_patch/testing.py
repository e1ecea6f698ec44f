"""Whether what was said of a function is true, tried on one process."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .batch.registered import unfit
from .extending import KINDS, Argument, Rule, batch_dim_of_result, dims_by_name, rule_of
from .structure import leaves, leaves_below, nodes_of


class RuleError(AssertionError):
    """A function does not do what was said of it."""


_AS_REGISTERED: Any = object()


def check_rule(
    function: Callable[..., Any],
    /,
    *args: Any,
    kind: str | None = None,
    dims: Mapping[Argument, int | None] | None = None,
    out_dims: Any = _AS_REGISTERED,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = True,
    **kwargs: Any,
) -> None:
    """Call a function on a batch and on its parts, and compare values and gradients.

    The parts are those of two, three and as many ranks as there are rows. Gradients are of every argument that wants
    one, by a cotangent that differs from element to element.

    Args:
        function: registered or not.
        args: for it, as one process would give them, with at least 2 rows; float64 is best.
        kind: "rowwise", "sum" or "mean"; of a function that is registered, as there.
        dims: argument, by name or position -> the dimension of its rows; by default the first tensor, and all others
            with as many rows, along dimension 0. Of a function that is registered, as there.
        out_dims: dimension of the rows in every result, None for one without; 0 by default. Of a function that is
            registered, as there.
        rtol: relative tolerance; by default 1e-9 for float64 and torch.testing's for others.
        atol: absolute tolerance.
        gradients: False for a function that only gets data: its arguments want none then.
        kwargs: for it.

    Raises:
        RuleError: what differs, by how much.
        ValueError: for arguments without rows, or another rule than the one that is registered.
    """
    checked = _Check(_rule(function, kind, dims, out_dims), args, kwargs, (rtol, atol), gradients)
    for ranks in sorted({2, min(3, checked.rows), checked.rows}):
        checked.on(ranks)


def _rule(function: Any, kind: str | None, dims: Mapping[Argument, int | None] | None, out_dims: Any) -> Rule:
    if kind not in (None, "rowwise", *KINDS):
        raise ValueError(f"kind={kind!r}: 'rowwise', 'sum' or 'mean'")
    rule = rule_of(function)
    by_name = dims_by_name("testing.check_rule", function if rule is None else rule.function, dims)
    if rule is None:
        return Rule(function, kind or "rowwise", by_name, 0 if out_dims is _AS_REGISTERED else out_dims)
    requested = {
        "kind": rule.kind if kind is None else kind,
        "dims": rule.dims if dims is None else by_name,
        "out_dims": rule.out_dims if out_dims is _AS_REGISTERED else out_dims,
    }
    for name, value in requested.items():
        if value != getattr(rule, name):
            raise ValueError(
                f"{name}={value!r}: {rule.name} is registered with {name}={getattr(rule, name)!r}, and that is what "
                "is checked. Register it so, or check the function that you registered."
            )
    return rule


class _Check:
    def __init__(
        self,
        rule: Rule,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tolerance: tuple[float | None, float | None],
        gradients: bool,
    ) -> None:
        self._rule, self._args, self._kwargs, self._tolerance = rule, args, kwargs, tolerance
        self._gradients = gradients
        arguments = rule.arguments(args, kwargs)
        tensors = {place: value for place, _, value in arguments if isinstance(value, Tensor)}
        if not tensors:
            raise ValueError(f"{rule.name} got no tensor. Call check_rule with what one process would give it")
        if rule.dims is None:
            # Of batches each is cut where it is called, and a plain tensor with as many rows is an error there.
            maybe = {place: value for place, value in tensors.items() if not isinstance(value, nn.Parameter)} or tensors
            rows = next(iter(maybe.values())).shape[:1]
            self._dims = {place: 0 for place, value in maybe.items() if value.shape[:1] == rows}
        else:
            said = {place: rule.dim_of(place if isinstance(place, int) else -1, name) for place, name, _ in arguments}
            self._dims = {place: dim for place, dim in said.items() if place in tensors and dim is not None}
        counts = {tensors[place].shape[dim] for place, dim in self._dims.items()}
        if len(counts) != 1 or min(counts) < 2:
            have = f"these have {sorted(counts)} (dims={self._named()})" if counts else "dims names no tensor"
            raise ValueError(f"batches need one number of rows, 2 or more; {have}")
        self.rows = counts.pop()

    def on(self, ranks: int) -> None:
        """Compare with so many ranks."""
        counts = [self.rows // ranks + (rank < self.rows % ranks) for rank in range(ranks)]
        wanted, wanted_grads = self._run([self.rows])
        got, grads = self._run(counts)
        self._compare(f"its results on {ranks} ranks", got, wanted)
        self._compare(f"its gradients on {ranks} ranks", grads, wanted_grads)

    def _run(self, counts: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Call it on parts with these numbers of rows, and put the results together."""
        fresh = {
            place: value.detach().clone().requires_grad_(self._wants_gradient(value))
            for place, _, value in self._rule.arguments(self._args, self._kwargs)
            if isinstance(value, Tensor)
        }
        parts = [self._call(fresh, sum(counts[:i]), count) for i, count in enumerate(counts)]
        results = [self._together(index, column, counts) for index, column in enumerate(zip(*parts, strict=True))]
        loss = functools.reduce(
            operator.add,
            [(r * _cotangent(r)).sum() for r in results if isinstance(r, Tensor) and r.requires_grad],
            torch.zeros((), dtype=torch.float64, device="cpu"),
        )
        wanted = [value for value in fresh.values() if value.requires_grad]
        try:
            return results, list(torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else [])
        except Exception as error:
            if len(counts) == 1:
                raise
            raise RuleError(f"the backward of {self._rule.name} fails on {counts} rows: {error}") from error

    def _call(self, fresh: Mapping[Argument, Tensor], start: int, count: int) -> list[Any]:
        def part(place: Argument, value: Any) -> Any:
            if place not in fresh:
                return value
            dim = self._dims.get(place)
            return fresh[place].clone() if dim is None else fresh[place].narrow(dim, start, count).clone()

        args = [part(place, value) for place, value in enumerate(self._args)]
        kwargs = {name: part(name, value) for name, value in self._kwargs.items()}
        inputs = nodes_of((args, kwargs))
        try:
            result = self._rule.function(*args, **kwargs)
        except Exception as error:
            if self._gradients and "requires grad" in str(error):  # torch's words (2.13)
                hint = "If it only gets data, write check_rule(..., gradients=False)"
                raise RuleError(f"{self._rule.name} fails on tensors that want gradients: {error}. {hint}") from error
            if count == self.rows:
                raise
            hint = self._if_whole()
            if others := self._with_as_many_rows():
                named = {**self._named(), **others}
                hint = f". Other arguments have as many rows: if they are batches, register it with dims={named}"
            raise RuleError(f"{self._rule.name} fails on {count} of {self.rows} rows: {error}{hint}") from error
        if self._rule.kind in KINDS and not isinstance(result, Tensor):
            raise RuleError(f"{self._rule.name} gives {type(result).__name__}; a reduction gives one tensor")
        if self._rule.kind not in KINDS and (found := unfit(self._rule, result)):
            raise RuleError(found)
        for other in leaves_below(nodes_of(result), inputs):
            raise RuleError(
                f"{self._rule.name} uses a tensor of shape {tuple(other.shape)} that needs a gradient and is none of "
                "its arguments. Pass it as one"
            )
        return [leaf for _, leaf in leaves(result)]

    def _wants_gradient(self, value: Tensor) -> bool:
        return self._gradients and (value.is_floating_point() or value.is_complex())

    def _named(self) -> dict[Argument, int]:
        """Give the dimensions as they are written in ``dims``."""
        names = {place: name or place for place, name, _ in self._rule.arguments(self._args, self._kwargs)}
        return {names[place]: dim for place, dim in self._dims.items()}

    def _with_as_many_rows(self) -> dict[Argument, int]:
        """Arguments that are no batches as far as is known, and may be."""
        return {
            place if name is None else name: 0
            for place, name, value in self._rule.arguments(self._args, self._kwargs)
            if isinstance(value, Tensor) and place not in self._dims and value.shape[:1] == (self.rows,)
        }

    def _together(self, index: int, parts: Sequence[Any], counts: Sequence[int]) -> Any:
        if not isinstance(parts[0], Tensor):
            self._compare(f"result {index} of all parts", list(parts[1:]), [parts[0]] * (len(parts) - 1))
            return parts[0]
        if self._rule.kind == "sum":
            return functools.reduce(operator.add, parts)
        if self._rule.kind == "mean":
            weighted = (part * count for part, count in zip(parts, counts, strict=True))
            return functools.reduce(operator.add, weighted) / self.rows
        dim = batch_dim_of_result(self._rule, index)
        if dim is None:
            same = [parts[0]] * (len(parts) - 1)
            self._compare(f"result {index}, which has no rows, of all parts", list(parts[1:]), same)
            return parts[0]
        for part, count in zip(parts, counts, strict=True):
            if part.dim() <= dim or part.shape[dim] != count:
                raise RuleError(
                    f"{self._rule.name} gives a result of shape {tuple(part.shape)} for {count} rows, where dimension "
                    f"{dim} should have them (out_dims)"
                )
        return torch.cat(list(parts), dim)

    def _compare(self, what: str, got: Sequence[Any], wanted: Sequence[Any]) -> None:
        for index, (mine, right) in enumerate(zip(got, wanted, strict=True)):
            try:
                if isinstance(mine, Tensor) and isinstance(right, Tensor):
                    rtol, atol = self._tolerance
                    if rtol is None and atol is None and mine.dtype in (torch.float64, torch.complex128):
                        rtol, atol = 1e-9, 1e-9
                    torch.testing.assert_close(mine, right, rtol=rtol, atol=atol, equal_nan=True)
                elif mine is not right and mine != right:
                    raise AssertionError(f"{mine!r} instead of {right!r}")
            except AssertionError as error:
                raise RuleError(
                    f"{self._rule.name} is not {_SAID[self._rule.kind]}: {what} differ, entry {index}: {error}"
                    f"{_REST if self._rule.kind in KINDS else ''}{self._if_whole()}"
                ) from None

    def _if_whole(self) -> str:
        """Say what to write if an argument was taken for a batch."""
        if self._rule.dims is not None or len(self._dims) < 2:
            return ""
        first, *others = self._named()
        return (
            f". {', '.join(map(repr, others))} was taken for a batch, as one with as many rows would be; if it is the "
            f"same on every rank, register it with dims={ {first: 0} }"
        )


_SAID = {"rowwise": "rowwise", "sum": "a sum over rows", "mean": "a mean over rows"}
_REST = ". Register what is summed or averaged, and compute with it (a root, a quotient) outside"


def _cotangent(result: Tensor) -> Tensor:
    """Any weights that differ from element to element."""
    numbers = torch.arange(1, result.numel() + 1, dtype=torch.float64, device=result.device).reshape(result.shape)
    return torch.cos(numbers).to(result.dtype)
