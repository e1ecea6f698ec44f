"""A script's function, as TorchDynamo traces it: once for all rows, whatever a rank holds of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..batch.forms import known_whole
from ..batch.packed import PackedRows
from ..batch.pending_tensor import PendingTensor, passed_on, root_of
from ..batch.strides import scaled, tell_their_order
from ..batch.tensor import BatchTensor
from ..batch.world import World
from ..calling.containers import Containers
from ..structure import leaves, map_leaves
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
        self._is_told, self._tries = False, 0  # in this call; in how many they exchanged what they could
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
        tensors: list[tuple[Tensor, Any]] = []
        self._began, self._is_told, self._world = False, False, world
        try:
            return self._called(self._run, args, kwargs, tensors)
        finally:
            self._standing = {}
            self._world = None
            _keep_standing(tensors)

    def _called(
        self,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[tuple[Tensor, Any]],
    ) -> Any:
        given = self._stand_ins(args, kwargs, tensors)
        if given is None:
            return REFUSED
        containers = Containers((args, kwargs), given)
        try:
            outputs = containers.with_writes(run(*given[0], **given[1]))
        except Exception as error:
            if self._began:
                raise
            if not self._is_told:
                self._agree(error)
            return REFUSED
        return containers.write_back(map_leaves(lambda leaf: self._standing.get(id(leaf), leaf), outputs))

    def _agree(self, own: Exception | None) -> None:
        """Learn whether it is ever traced: one exchange when it is called first, none later.

        Args:
            own: what came of tracing it on this rank; None if a graph did.

        Raises:
            Refused: if another rank could not trace it, and this one could.
        """
        is_never = not (own is None or isinstance(own, NotTraced))
        if self._is_agreed:
            self._is_refused = is_never
            return
        assert self._world is not None
        told = self._world.share([own is None, is_never])
        self._is_told, self._tries = True, self._tries + 1
        self._is_agreed = all(is_traced for is_traced, _ in told)
        self._is_refused = not self._is_agreed and (self._tries > 1 or any(never for _, never in told))
        if own is None and not self._is_agreed:
            raise Refused

    def _stand_ins(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[tuple[Tensor, Any]]
    ) -> tuple[Any, Any] | None:
        known: dict[int, Tensor] = {}
        for _, leaf in leaves((args, kwargs)):
            if isinstance(leaf, PackedRows):
                return None
            if not isinstance(leaf, (BatchTensor, PendingTensor)) or id(leaf) in known:
                continue
            if isinstance(leaf, PendingTensor):
                tensor = _stand_in_of_a_sum(leaf)
            elif (strides := _strides(leaf)) is not None:
                tensor = _stand_in(leaf, strides)
            else:
                return None
            known[id(leaf)] = tensor
            self._standing[id(tensor)] = leaf
            tensors.append((tensor, leaf))
        return map_leaves(lambda leaf: known.get(id(leaf), leaf), (args, kwargs))  # type: ignore[no-any-return]

    def _graph(self, graph: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        """Be the compiler of what is traced."""
        for node in graph.graph.nodes:
            if node.op == "call_module" or isinstance(node.target, torch._ops.HigherOrderOperator):
                raise Refused
        programs = Programs(graph, self._parts)

        def run(*given: Any) -> Any:
            if any(isinstance(value, nn.Parameter) for value in given):
                raise Refused  # a module's, whose forward is no part of a function
            self._agree(None)
            self._began = True
            assert self._world is not None
            return programs.run(self._world, [self._standing.get(id(value), value) for value in given])

        return run


def _calls_models(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell functions that have a model or an optimizer at hand: to trace a forward, and then refuse it, takes long."""
    written = getattr(function, "__func__", function)
    names = getattr(getattr(written, "__code__", None), "co_names", ())
    around: list[Any] = [leaf for _, leaf in leaves((args, kwargs))]
    around += [known[name] for known in [getattr(written, "__globals__", {})] for name in names if name in known]
    for cell in getattr(written, "__closure__", None) or ():
        with suppress(ValueError):  # not there yet
            around.append(cell.cell_contents)
    if (own := getattr(function, "__self__", None)) is not None:
        around += [own, *(value for name, value in getattr(own, "__dict__", {}).items() if name in names)]
    return any(map(_is_model, around))


def _is_model(value: Any) -> bool:
    if isinstance(value, torch.optim.Optimizer):
        return True
    return isinstance(value, nn.Module) and next(value.parameters(), None) is not None


def _traced_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function refuse to be run as it is, on tensors that hold nothing, whatever keeps TorchDynamo off."""
    from torch._dynamo import external_utils  # noqa: PLC0415 — which takes a second, and is there by now

    def traced(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            raise NotTraced
        return function(*args, **kwargs)

    is_compiling = torch.compiler.is_dynamo_compiling
    # TorchDynamo (2.13) passes over the files of this package; it has one of its own for ways into functions.
    traced.__code__ = traced.__code__.replace(co_filename=external_utils.__file__)
    return traced


def _stand_in_of_a_sum(value: PendingTensor) -> Tensor:
    """Make a number that is no leaf of a graph where the sum is none, so that it can be written to."""
    with torch._C.DisableTorchFunctionSubclass():
        kind, device = value.dtype, value.device
    tensor = torch.zeros((), dtype=kind, device=device)
    return tensor.requires_grad_().clone() if value.requires_grad and torch.is_grad_enabled() else tensor


def _stand_in(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Make a tensor that TorchDynamo takes for the whole batch. It has no memory of its own: nobody looks at it."""
    with torch._C.DisableTorchFunctionSubclass():
        shape, kind, device = value.shape, value.dtype, value.device
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if shape.numel() else 0
    here = torch.empty(1, dtype=kind, device=device)
    storage = torch._C._construct_storage_from_data_pointer(here.data_ptr(), device, reach * here.element_size())
    tensor = here.new_empty(0).set_(storage, 0, shape, strides)
    return tensor.requires_grad_() if value.requires_grad else tensor


def _strides(batch: BatchTensor) -> tuple[int, ...] | None:
    """How the whole batch would lie, if its rows tell; None where it has no strides."""
    form = batch.forms[0]
    if form.layout is not torch.strided or form.is_nested:
        return None
    if (whole := known_whole(batch)) is not None:
        return whole.stride()
    if tell_their_order(batch._layout):
        return scaled(form, batch._layout)
    with torch._C.DisableTorchFunctionSubclass():
        return torch.empty(batch.shape, device="meta").stride()  # alike on every rank


def _keep_standing(tensors: list[tuple[Tensor, Any]]) -> None:
    """Make batches of stand-ins that the function has put somewhere: all that is left is references to them."""
    for tensor, meant in tensors:
        if sys.getrefcount(tensor) <= _REFERENCES:
            continue
        if isinstance(meant, PendingTensor):
            with torch._C.DisableTorchFunctionSubclass():
                tensor.copy_(root_of(meant))  # with its graph
            passed_on(meant, tensor)
        elif isinstance(meant, BatchTensor):
            kind, device = tensor.dtype, tensor.device
            tensor.data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)
            tensor.__class__ = BatchTensor
            tensor.__dict__.update(meant.__dict__, _grad=None)


_REFERENCES = 3  # the list's, this function's, and that of the call that counts
