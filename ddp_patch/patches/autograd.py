"""torch.autograd: note when a backward ended, and guard the door that would lose a batch's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from ..batch.constants import full_tensor_of
from ..batch.forms import full_tensor, to_local
from ..batch.nested import nested
from ..batch.nodes import unhooked
from ..batch.pending_tensor import PendingTensor, reduction_of, root_of
from ..batch.rules import hooked
from ..batch.rules.autograd_calls import as_list, is_of_batch
from ..batch.tensor import BatchTensor
from ..batch.transforms import is_mapped, is_wrapped, level_of, mapped, outside_transforms, unmapped
from ..calling.compiled import is_traced
from ..deciding.functions import dealt, study
from ..deciding.tried_forward import note_apply
from ..errors import BatchError
from ..gradients.averages import average
from ..gradients.graphs import comes_from, leaves_of
from ..patch import Args, Kwargs, Patch
from ..session import Session
from ..structure import leaves, map_leaves
from .below_modes import below_modes

_FLAGS = {type(None), bool}
_MOST_NODES = 100_000  # of a graph that are looked at once
_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_GRAD = (
    "outputs",
    "inputs",
    "grad_outputs",
    "retain_graph",
    "create_graph",
    "only_inputs",
    "allow_unused",
    "is_grads_batched",
    "materialize_grads",
)
# torch's own words
_UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. "
    "Set allow_unused=True if this is the desired behavior."
)


def _backward(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> None:
    bound = dict(zip(_BACKWARD, args, strict=False)) | kwargs
    roots = bound.pop("tensors")
    roots = [root_of(root) for root in roots] if isinstance(roots, (list, tuple)) else root_of(roots)
    reduction = reduction_of(roots) if _FLAGS.issuperset(map(type, bound.values())) else None
    recorded = bool(bound.get("create_graph"))
    if bound.get("inputs") is not None:
        inputs = bound["inputs"]
        wanted = as_list(inputs.values() if isinstance(inputs, dict) else inputs)
        bound["inputs"] = [unhooked(to_local(leaf) if isinstance(leaf, BatchTensor) else leaf) for leaf in wanted]
    scale = session.replicas.backwards.loss_scale
    if scale.active and not recorded and not session.replicas.backwards.is_busy:
        bound["grad_tensors"] = scale.begin(roots, bound.get("grad_tensors"), bound.get("inputs"))
    if session.replicas.backwards.is_running:
        session.replicas.backwards.nested.run(wrapped, roots, bound)
        return
    if session.by_hand.is_to_look(session.world.ledger.steps):
        session.by_hand.note_leaves(leaves_of(roots))
    all_leaves, reduction = bound.get("inputs") is None, None if recorded else reduction
    session.replicas.backwards.backward(lambda: wrapped(roots, **bound), all_leaves, recorded, reduction)


def _apply(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    instance = wrapped.__self__ if instance is None else instance  # wrapt does not know methods of a class from C
    note_apply(args, kwargs)
    of_script = is_scripts(instance)
    session.world.looks_at_gradients |= of_script and session.replicas.forwards.is_in_call  # its backward may clamp
    if of_script and session.replicas.forwards.computes_rows and not session.world.sees_gradients:
        result = wrapped(*args, **kwargs)
        for node in {leaf.grad_fn: None for _, leaf in leaves(result) if _is_of_function(leaf)}:
            # Rows carry N times the true gradient, which a backward that clamps or normalises would tell.
            node.register_prehook(lambda grads: _scaled(grads, 1 / session.world.size))
            node.register_hook(lambda grads, outputs: _scaled(grads, session.world.size))
        return result
    seen = session.world.observation
    if seen is None and (passed := hooked.passed_through(instance, wrapped, args)) is not None:
        return passed
    # Below torch functions a batch has no graph: a Function would compute on the wrapper and drop the gradient.
    if seen is not None and of_script and not session.world.sees_gradients:
        seen.note_autograd_function(args)
    if seen is not None and any(isinstance(leaf, BatchTensor) for _, leaf in leaves(args)):
        layouts = study(instance, args, seen, session.world)
        with seen.paused():
            result = _on_whole(session, wrapped, instance, args, kwargs)
            session.applied.layouts[instance] = layouts if of_script else []
            # So that what is computed of it is seen as well; torch's have hooks, on what one process has.
            return dealt(result, layouts, args) if of_script else result
    is_alone = of_script and not kwargs and any(isinstance(leaf, BatchTensor) for _, leaf in leaves(args))
    if is_alone and (stands := session.applied.takes(instance, args)) is not None:
        return session.applied.call(stands, args)
    result = _on_whole(session, wrapped, instance, args, kwargs)
    return dealt(result, session.applied.layouts_again(instance), args)


def is_scripts(function: type) -> bool:
    """Tell whether a function is not one of torch's."""
    return not function.__module__.startswith("torch.")


def _on_whole(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    has_batches = any(isinstance(leaf, BatchTensor) for _, leaf in leaves(args))
    with ExitStack() as around:
        if has_batches:
            around.enter_context(session.world.working_on_whole(f"{instance.__name__}.apply"))
        if has_batches or is_scripts(instance):
            around.enter_context(session.replicas.forwards.without_interception())  # its forward's modules too
        whole = map_leaves(lambda leaf: full_tensor(leaf) if isinstance(leaf, BatchTensor) else leaf, args)
        result = wrapped(*whole, **kwargs)
    if any(isinstance(leaf, BatchTensor) for _, leaf in leaves(result)):
        raise BatchError(
            f"{instance.__name__}.forward returned a batch that it did not get as an argument, so the gradient of "
            f"that batch would be lost. Pass it: {instance.__name__}.apply(..., batch)."
        )
    return result


def _grad(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    # Inside another one, gradients are this rank's share; in what AOTAutograd traces, ranks cannot meet.
    if session.replicas.backwards.is_busy or is_traced():
        return wrapped(*args, **kwargs)
    bound = dict(zip(_GRAD, args, strict=False)) | kwargs
    vectors = as_list(bound.get("grad_outputs"))
    if any(map(is_mapped, vectors)) and _is_ours_to_map(session, bound, vectors):
        return _over_mapped(bound, vectors)
    inputs = bound["inputs"]
    if type(inputs) is dict:
        return dict(zip(inputs, torch.autograd.grad(**bound | {"inputs": list(inputs.values())}), strict=True))
    sources = bound["inputs"] = as_list(inputs)
    session.by_hand.note_leaves(source for source in sources if source.is_leaf)
    if bound.get("is_grads_batched"):
        return one_by_one(bound)
    if not any(isinstance(leaf, BatchTensor) for _, leaf in leaves(bound["outputs"])):  # which no rule of a batch sees
        bound["grad_outputs"] = nested(full_tensor_of, bound.get("grad_outputs"))
    trained = [index for index, source in enumerate(sources) if is_trained(session, source)]
    if not trained:
        return wrapped(**{**bound, "inputs": list(map(unhooked, sources))})
    # A parameter may be unused by the rows of some ranks only.
    with session.replicas.backwards.grad():
        values = list(wrapped(**{**bound, "inputs": list(map(unhooked, sources)), "allow_unused": True}))
    averaged = average([sources[index] for index in trained], [values[index] for index in trained], session.world)
    for index, value in zip(trained, averaged, strict=True):
        values[index] = None if value is None else session.replicas.backwards.hooks.on(sources[index], value)
    if any(value is None for value in values) and not (bound.get("allow_unused") or bound.get("materialize_grads")):
        raise RuntimeError(_UNUSED)
    return tuple(values)


def is_trained(session: Session, source: Any) -> bool:
    """Tell parameters, and what was computed of them alone: a rank may have its share of the gradient there."""
    if session.replicas.backwards.was_replica_parameter(source):
        return True
    if isinstance(source, BatchTensor) or is_of_batch(source) or getattr(source, "grad_fn", None) is None:
        return False
    return comes_from(unhooked(source), session.replicas.backwards.was_replica_parameter, _MOST_NODES)


def one_by_one(bound: dict[str, Any]) -> tuple[Any, ...]:
    """``is_grads_batched``, without vmap: crossings between ranks cannot be batched."""
    vectors = bound.pop("grad_outputs")
    vectors = vectors if isinstance(vectors, (list, tuple)) else [vectors]
    del bound["is_grads_batched"]
    count = next(len(vector) for vector in vectors if vector is not None)
    keep = bound.pop("retain_graph", None)
    keep = bool(bound.get("create_graph")) if keep is None else keep
    rows = [
        torch.autograd.grad(
            **bound, grad_outputs=[v if v is None else v[i] for v in vectors], retain_graph=keep or i < count - 1
        )
        for i in range(count)
    ]
    return tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True))


def _is_ours_to_map(session: Session, bound: dict[str, Any], vectors: list[Any]) -> bool:
    """Tell gradients in which ranks meet, where one ``vmap`` goes over their vectors and nothing else is mapped."""
    outputs = as_list(bound["outputs"])
    is_inside = any(map(is_wrapped, outputs)) or any(is_mapped(v) and is_mapped(unmapped(v)) for v in vectors)
    if is_inside or bound.get("is_grads_batched") or type(bound["inputs"]) is dict:
        return False
    sources = bound["inputs"] = as_list(bound["inputs"])
    of_batches = any(isinstance(value, (BatchTensor, PendingTensor)) for value in (*outputs, *sources))
    return of_batches or any(is_trained(session, source) for source in sources)


def _over_mapped(bound: dict[str, Any], vectors: list[Any]) -> tuple[Any, ...]:
    """Products with vectors that ``vmap`` goes over, as in a Jacobian: outside of it, one after the other."""
    level, count = next((level_of(vector), len(unmapped(vector))) for vector in vectors if is_mapped(vector))

    def taken(vector: Any) -> Any:
        if vector is None:
            return None
        return unmapped(vector) if is_mapped(vector) else vector.expand(count, *vector.shape)

    with outside_transforms():
        found = torch.autograd.grad(**bound | {"grad_outputs": list(map(taken, vectors)), "is_grads_batched": True})
    return tuple(None if value is None else mapped(full_tensor_of(value), level) for value in found)


def _variable(session: Session, wrapped: Any, instance: Any, args: Args, kwargs: Kwargs) -> Any:
    if not (args and isinstance(args[0], BatchTensor)):
        return wrapped(*args, **kwargs)
    wants_grad = args[1] if len(args) > 1 else kwargs.get("requires_grad", False)
    return args[0].detach().requires_grad_(bool(wants_grad))


def _is_of_function(value: Any) -> bool:
    return isinstance(value, Tensor) and isinstance(value.grad_fn, torch.autograd.function.BackwardCFunction)


def _scaled(grads: Sequence[Tensor | None], factor: float) -> tuple[Tensor | None, ...]:
    return tuple(None if grad is None else grad * factor for grad in grads)


PATCHES = (
    Patch("torch.autograd", "grad", below_modes(_grad), "averages gradients of the model's parameters"),
    Patch("torch.autograd.variable", "VariableMeta.__call__", _variable, "Variable(batch) stays a batch"),
    Patch(
        "torch.autograd",
        "backward",
        below_modes(_backward, heard=1),
        "tells DDP when to reduce; gradients are global when somebody looks",
    ),
    Patch("torch.autograd.function", "Function.apply", _apply, "gets whole batches: below it a batch has no graph"),
)
