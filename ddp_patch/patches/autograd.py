"""torch.autograd: note when a backward ended, and guard the door that would lose a batch's gradient."""

from __future__ import annotations

from typing import Any

from ..batch.crossings import total
from ..batch.tensor import BatchTensor, whole_of
from ..batch.world import World
from ..errors import BatchError
from ..patcher import Patch
from ..replica.replicas import Replicas
from ..structure import leaves, map_leaves


def patches(replicas: Replicas, world: World) -> list[Patch]:
    """Rows for ``torch.autograd``."""

    def backward(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        wrapped(*args, **kwargs)
        replicas.after_backward()

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
        inputs = args[1] if len(args) > 1 else kwargs["inputs"]
        sources = inputs if isinstance(inputs, (list, tuple)) else [inputs]
        return tuple(
            total(value) / world.size if value is not None and replicas.trains(source) else value
            for value, source in zip(wrapped(*args, **kwargs), sources, strict=True)
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
