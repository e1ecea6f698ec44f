"""Autograd functions of the script's own inside a model: whether their two halves keep the rows of a batch apart.

Below torch functions a batch has no graph, so such a function gets the whole batch. On rows it may only run if neither
its forward nor its backward looks at other rows, which is seen by running both, once, on batches and on rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batch.forms import full_tensor
from ..batch.layout import Layout
from ..batch.observation import Observation
from ..batch.rules.elementwise import to_local_form
from ..batch.shared_memory import look_through, shares_memory
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.comparison import close
from ..generators import same_draws
from ..structure import leaves, map_leaves
from .given_numbers import NotingNumbers
from .parameter_sums import OF_WHOLE, ParameterSums
from .reached_parameters import reached_parameters
from .trial_run import is_of_machine
from .trial_writes import TrialWrites
from .twins import Twins
from .watched_numbers import only_calculates

_FEW = 4  # rows, of which gradients are seen to be sums: their function was seen to keep all rows apart


class _Context:
    """What a function's halves use to pass things on (torch.autograd.function.FunctionCtx), without a graph."""

    saved_tensors: tuple[Any, ...] = ()
    needs_input_grad: tuple[bool, ...] = ()
    passed_by: tuple[Tensor, ...] = ()  # outputs that no gradient comes to

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.saved_tensors = self.to_save = tensors

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """The old name."""
        return self.saved_tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Have no gradient come to some outputs; to a function that marks all of them, none comes at all."""
        self.passed_by = outputs

    def _nothing(self, *args: Any) -> None:
        """Nothing depends on it here."""

    mark_dirty = set_materialize_grads = save_for_forward = _nothing


def study(function: Any, args: tuple[Any, ...], seen: Observation, world: World) -> list[Layout | None]:
    """Note in an observation what a function does with the rows of its arguments. All ranks come here.

    Returns:
        where its outputs have rows; nothing where not every rank saw that they are kept apart.
    """
    with seen.paused():
        for _, leaf in leaves(args):
            if isinstance(leaf, BatchTensor):
                full_tensor(leaf)  # which it gets in this call; and what is tried of it needs no other rank
    if name := reached_parameters(function):
        return _forbid(function, seen, f" (by {name!r}), and may write to them")
    with seen.preserving_state(function):
        before, layouts = TrialWrites(seen), _where_rows_lie(function, args, seen, world)
        if before.undo(function.__name__):
            layouts = _forbid(function, seen, ", and writes to them")
        with seen.paused():
            answers = [answer[0] for answer in world.share([repr(layouts)])]  # a rank may have met an error of its own
    return layouts if all(one == answers[0] for one in answers) else []


def _forbid(function: Any, seen: Observation, how: str) -> list[Layout | None]:
    why = f"{function.__name__} reaches parameters that it is not given{how}"
    seen.forbid_split(why, f"Pass them: {function.__name__}.apply(..., weight)")
    return []


def dealt(result: Any, layouts: Sequence[Layout | None], args: tuple[Any, ...]) -> Any:
    """Make batches of what a function gave for whole batches.

    Args:
        result: of the function.
        layouts: as ``study`` gives them.
        args: of the call.
    """
    outputs = result if isinstance(result, tuple) else (result,)
    if len(outputs) != len(layouts):
        return result
    inputs = [full_tensor(leaf) for _, leaf in leaves(args) if isinstance(leaf, BatchTensor)]
    dealt = list(outputs)
    for at, (out, layout) in enumerate(zip(outputs, layouts, strict=True)):
        if layout is not None:
            dealt[at] = BatchTensor.from_full(out, layout)
            if any(shares_memory(out, whole) for whole in inputs):  # it was written in place
                look_through(dealt[at])
    return tuple(dealt) if isinstance(result, tuple) else dealt[0]


def _where_rows_lie(function: Any, args: tuple[Any, ...], seen: Observation, world: World) -> list[Layout | None]:
    name = f"{function.__name__}.apply"
    inner = Observation(
        lambda tensor, _: True, tries=world.unruled_calls.agreed, preserving_state=seen.preserving_state
    )
    inner.sees_gradients_apart = True
    with same_draws() as draw_again, torch.no_grad():
        needs = needs_grad(args, seen.has_frozen)

        def tried(cut: Callable[[Any], Any]) -> tuple[Any, tuple[Any, ...]]:
            draw_again()
            twins = Twins()
            halves = both_halves(function, map_leaves(lambda leaf: twins.of(cut(leaf)), args), needs)
            if twins.have_gradients():
                inner.why_not_split = inner.why_not_split or "its backward adds to gradients by itself"
            return halves

        try:
            world.observation = inner
            with ParameterSums(inner) as sums, NotingNumbers() as of_all:  # the last one is asked first, by the script
                results = tried(lambda leaf: leaf)
            sums.close(args, *results)
            world.observation = None
            with NotingNumbers() as of_rows:
                local = tried(to_local_form)
            is_same = _same([*leaves(results)], [*leaves(local)], args)
            differs = of_rows.given.differing(of_all.given) or of_rows.given.parting(of_all.given)
            if inner.why_not_split is None and (differs or not is_same):
                inner.why_not_split = "it calculates with the batch size"
            trained = _trained(args, results[1])
            if inner.why_not_split is None and (trained or sums.has_some):
                grads = (tried(functools.partial(_part, which=which))[1] for which in (None, 0, 1))
                are_followed = sums.are_followed(grad for _, grad in trained)
                are_averaged = all(world.has_averaged_gradient(arg) for arg, _ in trained)
                if not (are_followed and are_averaged and _are_sums(args, *grads)):
                    inner.why_not_split = OF_WHOLE
            if any(type(arg) is float for arg in args):
                seen.only_calculates = only_calculates(args, tried, world)
        except Exception as error:  # noqa: BLE001 — the author's code, on what it was not written for
            if is_of_machine(error):
                seen.unknown_functions[name] = None  # a rank's rows may do
            else:
                seen.forbid_split(f"{name} cannot be studied ({type(error).__name__}), so it gets the whole batch")
            return []
        finally:
            world.observation = seen
            draw_again()
    seen.unknown_functions.update(inner.unknown_functions)
    if inner.why_not_split is not None:
        seen.why_not_split = seen.why_not_split or f"in {name}: {inner.why_not_split}"
        return []
    outputs = results[0] if isinstance(results[0], tuple) else (results[0],)
    return [out._layout if isinstance(out, BatchTensor) else None for out in outputs]


def needs_grad(args: tuple[Any, ...], has_frozen: bool) -> tuple[bool, ...]:
    """Tell which arguments a backward may be asked for the gradients of.

    Args:
        args: of a call.
        has_frozen: there are parameters that are not trained, as yet; a tensor may be computed of them.
    """

    def may_be_asked(arg: Tensor) -> bool:
        return arg.requires_grad or has_frozen or isinstance(arg, (BatchTensor, nn.Parameter))

    return tuple(isinstance(arg, Tensor) and arg.is_floating_point() and may_be_asked(arg) for arg in args)


def both_halves(
    function: Any, args: tuple[Any, ...], needs_input_grad: tuple[bool, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Run the forward of a function and its backward, and give what both return.

    Args:
        function: of the script's.
        args: for it.
        needs_input_grad: as ``needs_grad`` gives it.
    """
    ctx = _Context()
    ctx.needs_input_grad = needs_input_grad
    if function.setup_context is torch.autograd.Function.setup_context:
        outputs = function.forward(ctx, *args)
    else:
        outputs = function.forward(*args)
        function.setup_context(ctx, args, outputs)
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    floats = [out for out in several if isinstance(out, Tensor) and out.is_floating_point()]
    passed_by = {id(out) for out in ctx.passed_by}
    if all(id(out) in passed_by for out in floats):
        return outputs, (None,) * len(args)
    # Any gradient whose rows belong to the outputs' rows.
    vectors = [
        torch.cos(out) * (id(out) not in passed_by) if any(out is other for other in floats) else None
        for out in several
    ]
    grads = function.backward(ctx, *vectors)
    return outputs, grads if isinstance(grads, tuple) else (grads,)


def _same(results: list[tuple[str, Any]], local: list[tuple[str, Any]], args: tuple[Any, ...]) -> bool:
    if [path for path, _ in results] != [path for path, _ in local]:
        return False
    # Of what every rank has whole, the gradient of its rows is another one.
    plain = [at for at, arg in enumerate(args) if isinstance(arg, Tensor) and not isinstance(arg, BatchTensor)]
    whole = {f"[1][{at}]" for at in plain}
    pairs = [
        (to_local_form(left), right)
        for (path, left), (_, right) in zip(results, local, strict=True)
        if path not in whole
    ]
    return all(close(left, right) for left, right in pairs if isinstance(left, Tensor) and isinstance(right, Tensor))


def _trained(args: tuple[Any, ...], grads: tuple[Any, ...]) -> list[tuple[Tensor, Any]]:
    """List the arguments that every rank has whole and that get a gradient, and this."""
    return [
        (arg, grad)
        for arg, grad in zip(args, grads, strict=False)
        if isinstance(arg, Tensor) and not isinstance(arg, BatchTensor) and arg.requires_grad and grad is not None
    ]


def _are_sums(args: tuple[Any, ...], of_all: tuple[Any, ...], *of_parts: tuple[Any, ...]) -> bool:
    """Tell whether gradients of what every rank has whole are the sums of those that parts of the rows give."""
    return all(
        all(isinstance(grad, Tensor) for grad in grads) and close(sum(grads[1:]), grads[0])
        for arg, *grads in zip(args, of_all, *of_parts, strict=False)
        if isinstance(arg, Tensor) and not isinstance(arg, BatchTensor) and not all(grad is None for grad in grads)
    )


def _part(leaf: Any, which: int | None) -> Any:
    """Give a few rows of a batch, or those of them before the middle, or those behind it."""
    if not isinstance(leaf, BatchTensor):
        return leaf
    few = min(leaf._layout.total, _FEW)
    middle = few // 2
    start, stop = {None: (0, few), 0: (0, middle), 1: (middle, few)}[which]
    return full_tensor(leaf).narrow(leaf._layout.dim, start, stop - start)
