"""A script's function, as TorchDynamo traces it: once for all rows, whatever a rank holds of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..batch.forms import full_tensor_if_gathered
from ..batch.packed import PackedRows
from ..batch.pending_tensor import PendingTensor
from ..batch.strides import scaled, tell_their_order
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.containers import Containers
from ..errors import DdpPatchError
from ..structure import is_container, leaves, map_leaves
from .nodes import is_computable
from .parts import Parts, compiled
from .programs import Programs

REFUSED = object()


class Refused(Exception):
    """What was traced cannot be computed in parts."""


class NotTraced(Refused):
    """Nothing is traced now: ``torch.compiler.set_stance("force_eager")``, say."""


class Traced:
    """A function that is traced as one graph, with all that it depends on watched by TorchDynamo."""

    def __init__(self, function: Callable[..., Any], how: dict[str, Any]) -> None:
        """Trace nothing yet.

        Args:
            function: the script's.
            how: arguments of ``torch.compile``, for its parts.
        """
        self._function = function
        self._how = how
        self._parts = Parts(how)
        self._run: Callable[..., Any] | None = None
        self._is_refused = False
        self._is_agreed = False  # all ranks could trace it when it was called first
        self._has_exchanged, self._tries = False, 0  # in this call; in how many they exchanged what they could
        self._began = False
        self._standing: dict[int, Any] = {}  # what tensors of the whole batch's shape stand for, by identity
        self._world: World | None = None

    def called(self, world: World, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it on batches; ``REFUSED`` if it cannot be traced, and nothing was done."""
        if self._is_refused or self._standing:
            return REFUSED
        if self._run is None:
            if _calls_models(self._function, args, kwargs):
                self._is_refused = True
                return REFUSED
            of_graph = {name: self._how[name] for name in ("dynamic", "recompile_limit") if name in self._how}
            self._run = compiled(_traced_only(self._function), backend=self._graph, fullgraph=True, **of_graph)
        self._began, self._has_exchanged, self._world = False, False, world
        try:
            return self._called(self._run, args, kwargs)
        finally:
            self._standing, self._world = {}, None

    def _called(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stand_ins = self._stand_ins(args, kwargs)
        if stand_ins is None:
            return REFUSED
        containers = Containers((args, kwargs), stand_ins)
        try:
            outputs = containers.with_writes(run(*stand_ins[0], **stand_ins[1]))
        except DdpPatchError:
            raise
        except Exception as error:  # whatever TorchDynamo says of the function: by then nothing was done
            if self._began:
                raise
            if not self._has_exchanged:
                self._agree(error)
            return REFUSED
        return containers.write_back(outputs)

    def _agree(self, error: Exception | None) -> None:
        """Learn whether it is ever traced: one exchange when it is called first, none later.

        Args:
            error: what came of tracing it on this rank; None if a graph did.

        Raises:
            Refused: if another rank could not trace it, and this one could.
        """
        is_never = not (error is None or isinstance(error, NotTraced))
        if self._is_agreed:
            self._is_refused = is_never
            return
        assert self._world is not None
        answers = self._world.share([error is None, is_never])
        self._has_exchanged, self._tries = True, self._tries + 1
        self._is_agreed = all(is_traced for is_traced, _ in answers)
        self._is_refused = not self._is_agreed and (self._tries > 1 or any(never for _, never in answers))
        if error is None and not self._is_agreed:
            raise Refused

    def _stand_ins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """Put tensors in the place of batches; None where TorchDynamo would see batches, or take them for others."""
        replaced: dict[int, Tensor] = {}
        tensors = [id(leaf) for _, leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if len(tensors) > len(set(tensors)):
            return None  # in a graph, one tensor under two names is two
        for _, leaf in leaves((args, kwargs)):
            if isinstance(leaf, PackedRows) or (isinstance(leaf, BatchTensor) and _is_leaf(leaf)):
                return None
            if isinstance(leaf, (BatchTensor, PendingTensor)) and id(leaf) not in replaced:
                strides = () if isinstance(leaf, PendingTensor) else _strides(leaf)
                if strides is None:
                    return None
                replaced[id(leaf)] = tensor = _stand_in(leaf, strides)
                self._standing[id(tensor)] = leaf
        if not all(map(_is_entered, (args, kwargs))):
            return None
        return map_leaves(lambda leaf: replaced.get(id(leaf), leaf), (args, kwargs))  # type: ignore[no-any-return]

    def _graph(self, graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        """Be the compiler of what is traced."""
        for node in graph.graph.nodes:
            if not is_computable(node):
                raise Refused
            if node.target is _entered:
                node.replace_all_uses_with(node.args[0])
                graph.graph.erase_node(node)
        programs = Programs(graph, self._parts)

        def run(*inputs: Any) -> Any:
            if any(isinstance(value, nn.Parameter) for value in inputs):
                raise Refused  # a module's, whose forward is no part of a function
            self._agree(None)
            self._began = True
            assert self._world is not None
            return programs.run(self._world, [self._standing.get(id(value), value) for value in inputs])

        return run


def _calls_models(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell functions that have a model or an optimizer at hand: to trace a forward, and then refuse it, takes long."""
    written = getattr(function, "__func__", function)
    names = getattr(getattr(written, "__code__", None), "co_names", ())
    around: list[Any] = [leaf for _, leaf in leaves((args, kwargs))]
    around += [scope[name] for scope in [getattr(written, "__globals__", {})] for name in names if name in scope]
    for cell in getattr(written, "__closure__", None) or ():
        with suppress(ValueError):  # not there yet
            around.append(cell.cell_contents)
    if (owner := getattr(function, "__self__", None)) is not None:
        around += [owner, *(value for name, value in getattr(owner, "__dict__", {}).items() if name in names)]
    return any(map(_is_model, around))


def _is_model(value: Any) -> bool:
    if isinstance(value, torch.optim.Optimizer):
        return True
    return isinstance(value, nn.Module) and next(value.parameters(), None) is not None


def _traced_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function refuse to be run as it is, on tensors that hold nothing, whatever keeps TorchDynamo off."""
    from torch._dynamo import external_utils  # noqa: PLC0415 — which takes a second, and is there by now

    def entered(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _entered(value)
        if type(value) is tuple:
            return tuple(map(entered, value))  # a comprehension is a function of this file
        if type(value) is list:
            value[:] = list(map(entered, value))
        elif type(value) is dict:
            for name in value:
                value[name] = entered(value[name])
        return value

    def traced(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            raise NotTraced
        return function(*entered(args), **entered(kwargs))

    is_compiling = torch.compiler.is_dynamo_compiling
    # TorchDynamo (2.13) passes over the files of this package; it has one of its own for ways into functions.
    for one in (entered, traced):
        one.__code__ = one.__code__.replace(co_filename=external_utils.__file__)
    torch.compiler.allow_in_graph(_entered)
    return traced


def _entered(tensor: Tensor) -> Tensor:
    """Make a tensor of the graph's own of an argument: what TorchDynamo knows to be one, it hands on past the graph."""
    return tensor.view_as(tensor)


def _is_entered(value: Any) -> bool:
    """Tell whether batches are in lists, tuples and dicts alone, where they can be exchanged while it is traced."""
    if type(value) in (tuple, list):
        return all(map(_is_entered, value))
    if type(value) is dict:
        return all(map(_is_entered, value.values()))
    return not is_container(value) or not any(
        isinstance(leaf, (BatchTensor, PendingTensor)) for _, leaf in leaves(value)
    )


def _is_leaf(batch: BatchTensor) -> bool:
    """Tell a batch whose gradients are kept, as those of what enters a graph are not."""
    return any(form.requires_grad and form.is_leaf for form in batch.forms)


def _stand_in(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Make a tensor that TorchDynamo takes for the whole batch, or a sum. It has no memory: nobody looks at it."""
    with torch._C.DisableTorchFunctionSubclass():
        shape, kind, device = value.shape, value.dtype, value.device
    if not shape and kind.is_floating_point:
        tensor = torch.full((), torch.nan, dtype=kind, device=device)  # TorchDynamo looks at numbers, but not at NaN
        return tensor.requires_grad_() if value.requires_grad else tensor
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if shape.numel() else 0
    empty = torch.empty(0, dtype=kind, device=device)
    storage = torch._C._construct_storage_from_data_pointer(0, device, reach * empty.element_size())
    tensor = empty.set_(storage, 0, shape, strides)
    return tensor.requires_grad_() if value.requires_grad else tensor


def _strides(batch: BatchTensor) -> tuple[int, ...] | None:
    """How the whole batch would lie, if its rows tell; None where it has no strides."""
    form = batch.forms[0]
    if form.layout is not torch.strided or form.is_nested:
        return None
    if (whole := full_tensor_if_gathered(batch)) is not None:
        return whole.stride()
    return scaled(form, batch._layout) if tell_their_order(batch._layout) else batch.stride()  # asked on every rank
