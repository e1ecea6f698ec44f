"""Autograd functions of the script's own inside a model: whether their two halves keep the rows of a batch apart.

Below torch functions a batch has no graph, so such a function gets the whole batch. On rows it may only run if neither
its forward nor its backward looks at other rows, which is seen by running both, once, on batches and on rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch.forms import to_local
from ..batch.observation import Observation
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.comparison import close
from ..generators import same_draws
from ..structure import leaves, map_leaves
from .probe import is_of_machine


class _Context:
    """What a function's halves use to pass things on (torch.autograd.function.FunctionCtx), without a graph."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.saved_tensors = self.to_save = tensors

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The old name."""
        return self.saved_tensors

    def _nothing(self, *args: Any) -> None:
        """Nothing depends on it here."""

    mark_dirty = mark_non_differentiable = set_materialize_grads = save_for_forward = _nothing


def study(function: Any, args: tuple[Any, ...], seen: Observation, world: World) -> None:
    """Note in an observation what a function does with the rows of its arguments."""
    name = f"{function.__name__}.apply"
    inner = Observation(lambda tensor: True)
    with same_draws() as draw_again, torch.no_grad(), seen.undisturbed():
        try:
            world.observation = inner
            results = list(leaves(_both_halves(function, map_leaves(_fresh, args))))
            world.observation = None
            draw_again()
            own = list(leaves(_both_halves(function, map_leaves(lambda leaf: _own(_fresh(leaf)), args))))
        except Exception as error:  # noqa: BLE001 — the author's code, on what it was not written for
            if is_of_machine(error):
                seen.unknown[name] = None  # a rank's rows may do
                return
            seen.tied(f"{name} cannot be studied ({type(error).__name__}), so it gets the whole batch")
            return
        finally:
            world.observation = seen
            draw_again()
        if inner.mixing is None and not _same(results, own):
            inner.mixing = "it calculates with the batch size"
        if inner.mixing is None and _trains_what_is_whole(args, results):
            inner.mixing = "it gives a gradient to what every rank has whole"
    if inner.mixing is not None:
        seen.mixing = seen.mixing or f"in {name}: {inner.mixing}"
    seen.unknown.update(inner.unknown)


def _both_halves(function: Any, args: tuple[Any, ...]) -> Any:
    ctx = _Context()
    ctx.needs_input_grad = tuple(isinstance(arg, Tensor) and arg.is_floating_point() for arg in args)
    if function.setup_context is torch.autograd.Function.setup_context:
        outputs = function.forward(ctx, *args)
    else:
        outputs = function.forward(*args)
        function.setup_context(ctx, args, outputs)
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    # Any gradient whose rows belong to the outputs' rows.
    vectors = [torch.cos(out) if isinstance(out, Tensor) and out.is_floating_point() else None for out in several]
    return outputs, function.backward(ctx, *vectors)


def _same(results: list[tuple[str, Any]], own: list[tuple[str, Any]]) -> bool:
    if [path for path, _ in results] != [path for path, _ in own]:
        return False
    pairs = [(_own(left), right) for (_, left), (_, right) in zip(results, own, strict=True)]
    return all(close(left, right) for left, right in pairs if isinstance(left, Tensor) and isinstance(right, Tensor))


def _trains_what_is_whole(args: tuple[Any, ...], results: list[tuple[str, Any]]) -> bool:
    grads = [leaf for path, leaf in results if path.startswith("[1]")]
    if len(grads) != len(args):  # one argument holds several, or the function returns a single one
        grads = grads * len(args) if len(grads) == 1 else grads
    return any(
        isinstance(arg, Tensor) and not isinstance(arg, BatchTensor) and arg.requires_grad and grad is not None
        for arg, grad in zip(args, grads, strict=False)
    )


def _fresh(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    twin = leaf.detach().clone()
    return twin if isinstance(leaf, BatchTensor) else twin.requires_grad_(leaf.requires_grad)


def _own(leaf: Any) -> Any:
    return to_local(leaf) if isinstance(leaf, BatchTensor) else leaf
