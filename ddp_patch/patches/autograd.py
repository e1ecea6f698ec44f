"""torch.autograd: note when a backward ended, and guard the door that would lose a batch's gradient."""

from __future__ import annotations

from typing import Any

from ..batch.crossings import total
from ..batch.promise import promise_of, root_of
from ..batch.tensor import BatchTensor, whole_of
from ..batch.world import World
from ..errors import BatchError
from ..patcher import Patch
from ..replica.replicas import Replicas
from ..structure import leaves, map_leaves

_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``torch.autograd``."""

    def backward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(_BACKWARD, args, strict=False)) | kwargs
        roots = given.pop("tensors")
        roots = [root_of(root) for root in roots] if isinstance(roots, (list, tuple)) else root_of(roots)
        promise = promise_of(roots) if all(v is None or isinstance(v, bool) for v in given.values()) else None
        recorded = bool(given.get("create_graph"))
        with replicas.backwards.backward(given.get("inputs") is None, recorded, None if recorded else promise):
            wrapped(roots, **given)

    def apply(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Below torch functions a batch has no graph: a Function would compute on the wrapper and drop the gradient.
        before = world.ledger.collectives["all_gather"], world.ledger.collective_bytes["all_gather"]
        whole = map_leaves(lambda leaf: whole_of(leaf) if isinstance(leaf, BatchTensor) else leaf, args)
        if whole is not args:
            calls = world.ledger.collectives["all_gather"] - before[0]
            size = world.ledger.collective_bytes["all_gather"] - before[1]
            world.ledger.gathered(f"{instance.__name__}.apply", calls, size)
        result = wrapped(*whole, **kwargs)
        if any(isinstance(leaf, BatchTensor) for _, leaf in leaves(result)):
            raise BatchError(
                f"{instance.__name__}.forward returned a batch that it did not get as an argument, so the gradient of "
                f"that batch would be lost. Pass it: {instance.__name__}.apply(..., batch)."
            )
        return result

    def grad(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if replicas.backwards.is_busy:  # inside another one, gradients are this rank's share
            return wrapped(*args, **kwargs)
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        sources = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        with replicas.backwards.grad():
            values = wrapped(*args, **kwargs)
        hooks, trains = replicas.backwards.hooks, replicas.backwards.trains
        return tuple(
            hooks.on(source, total(value) / world.size) if value is not None and trains(source) else value
            for value, source in zip(values, sources, strict=True)
        )

    def variable(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (args and isinstance(args[0], BatchTensor)):
            return wrapped(*args, **kwargs)
        wants_grad = args[1] if len(args) > 1 else kwargs.get("requires_grad", False)
        data = args[0].detach()
        return data.requires_grad_() if wants_grad else data

    return [
        Patch("torch.autograd", "grad", grad, "averages gradients of the model's parameters"),
        Patch("torch.autograd.variable", "VariableMeta.__call__", variable, "Variable(batch) stays a batch"),
        Patch("torch.autograd", "backward", backward, "gradients are global when it returns"),
        Patch("torch.autograd.function", "Function.apply", apply, "gets the whole batch"),
    ]
