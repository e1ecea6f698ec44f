"""Try a module once on rows and once on the whole batch, before its rows are computed apart for good.

A loss over all pairs of a batch, a discriminator that compares the batch's samples, a BatchNorm of the author's own:
split over ranks, they would silently compute something else. The trial runs two copies without gradients, with
BatchNorm at rest (the real one sees all ranks' rows) and every random draw replaced by a constant.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

from ..batch.tensor import BatchTensor
from ..generators import same_draws
from ..structure import is_container, leaves, map_leaves
from . import module_hooks
from .comparison import compare
from .rows import Entry, detached


@dataclass(frozen=True)
class Verdict:
    """How a module may be computed."""

    kind: str  # "rows": apart; "view": as written, on batches; "whole": as written, on plain tensors
    reason: str
    dims: dict[str, int | None] = field(default_factory=dict)  # batch dimension of each output, for "rows"


def judge(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry, vector: bool, is_observed: bool
) -> Verdict:
    """Decide how a module may be computed, as far as this rank's rows tell. No collective.

    Args:
        module: the module that was called.
        args: its positional arguments, of the whole batch.
        kwargs: its keyword arguments.
        entry: the same cut to rows.
        vector: 0-dim outputs are per rank by contract, as ``nn.DataParallel`` has them per device.
        is_observed: it was seen on batches to read none of their values: what it reads here is a mask of its own, say.
    """
    try:
        on_whole, on_rows = trial_copy(module), trial_copy(module)
    except Exception as error:  # noqa: BLE001 — deepcopy runs the author's code; the reason is reported
        return Verdict("whole", f"it cannot be tried on rows, since it cannot be copied ({type(error).__name__})")
    draws = _ConstantDraws()
    try:
        with undisturbed(), draws:
            whole = on_whole(*detached(args), **detached(kwargs))
    except Exception as error:  # noqa: BLE001 — the real call will raise it where the author can see it
        return Verdict("whole", f"it cannot be tried on rows, since the trial raised {type(error).__name__}")
    try:
        with undisturbed(), draws:
            rows = on_rows(*detached(entry.args), **detached(entry.kwargs))
    except Exception as error:  # noqa: BLE001 — it works on the whole and not on rows: it needs the whole
        return Verdict("view", f"on rows it raises {type(error).__name__}")
    if draws.hooked:
        return Verdict("view", "its forward registers hooks on activations, which see whole batches")
    if draws.looked and (draws.drew or not is_observed):
        return Verdict("view", "its forward reads values of the batch, and may branch on them")
    with torch.no_grad():
        dims = compare(rows, whole, entry.layout, vector)
    if dims is None and isinstance(module, torch.jit.ScriptModule):
        return Verdict("view", f"scripted code cannot be synchronised between ranks ({_scripted(module)})")
    if dims is None:
        return Verdict("view", "its outputs for some rows depend on the other rows of the batch")
    if not _same_state(on_rows, on_whole):
        return Verdict("view", "its forward keeps values of the batch on the module")
    return Verdict("rows", "its rows were seen to be independent", dims)


def _scripted(module: nn.Module) -> str:
    names = {str(getattr(layer, "original_name", type(layer).__name__)) for layer in module.modules()}
    mixing = sorted(name for name in names if "Norm" in name)
    return f"its {', '.join(mixing)} would see this rank's rows only" if mixing else "its rows depend on each other"


def note_hook() -> None:
    """Note that a forward registers a hook on an activation, if this is a trial."""
    if _ConstantDraws.running is not None:
        _ConstantDraws.running.hooked = True


def trial_copy(module: nn.Module) -> nn.Module:
    """Copy a module for a trial call: without the script's hooks, BatchNorm and dropout at rest."""
    # A weight that a hook computes anew in every call (weight_norm, spectral_norm) has a graph, which is not copied.
    computed = {id(leaf): leaf for layer in module.modules() for leaf in vars(layer).values() if _is_computed(leaf)}
    twin = copy.deepcopy(module, {key: leaf.detach().clone() for key, leaf in computed.items()})
    for layer in twin.modules():
        module_hooks.drop_own(layer)  # the author's hooks are for real calls
        if isinstance(layer, (_BatchNorm, _DropoutNd)):
            layer.eval()
        for parameter in layer.parameters(recurse=False):
            _vary(parameter)
        if isinstance(getattr(layer, "dropout", None), float):  # recurrent and attention layers drop inside kernels
            vars(layer)["dropout"] = 0.0
    return twin


def _is_computed(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, BatchTensor) and leaf.grad_fn is not None


def _vary(parameter: Tensor) -> None:
    """Give a parameter that starts constant different entries: behind a head of zeros all rows look alike."""
    with torch.no_grad():
        if parameter.numel() > 1 and parameter.is_floating_point() and bool(parameter.min() == parameter.max()):
            step = torch.arange(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
            parameter.add_(0.05 * torch.cos(step).view_as(parameter))


class _ConstantDraws(TorchDispatchMode):
    """Random numbers become constants, so that rows and whole draw alike; readings of values are noted."""

    _DRAWS = ("rand", "normal", "bernoulli", "uniform", "exponential", "geometric", "cauchy", "poisson", "multinomial")
    running: ClassVar[_ConstantDraws | None] = None
    _READS = ("_local_scalar_dense", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.looked = False
        self.drew = False  # what a forward decides by draws, every rank has to decide alike
        self.hooked = False

    def __enter__(self) -> Any:
        """Begin to note."""
        _ConstantDraws.running = self
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Note no more."""
        _ConstantDraws.running = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[-1].split(".")[0]
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        self.looked = self.looked or name in self._READS
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and any(draw in name for draw in self._DRAWS):
            self.drew = True
            return map_leaves(_constant, result)
        return result


def _constant(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        leaf.fill_(0.5 if leaf.is_floating_point() else 0)
    return leaf


def _same_state(ours: nn.Module, theirs: nn.Module) -> bool:
    """Tell whether both copies hold the same buffers and attributes after their calls."""
    for mine, other in zip(ours.modules(), theirs.modules(), strict=True):
        for key in {**vars(mine), **vars(other)}:
            if key in ("_parameters", "_modules"):
                continue
            if not _same_values(vars(mine).get(key), vars(other).get(key)):
                return False
    return True


def _opened(value: Any, depth: int = 3) -> Any:
    """Look into objects of the author's own, such as a meter."""
    if isinstance(value, (nn.Module, Tensor, type)) or callable(value) or depth == 0:
        return value
    if hasattr(value, "__dict__") and not is_container(value):
        return {name: _opened(item, depth - 1) for name, item in vars(value).items()}
    return value


def _same_values(mine: Any, other: Any) -> bool:
    left, right = list(leaves(_opened(mine))), list(leaves(_opened(other)))
    if [path for path, _ in left] != [path for path, _ in right]:
        return False
    for (_, a), (_, b) in zip(left, right, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.shape != b.shape or not torch.allclose(a.double(), b.double(), rtol=1e-6, equal_nan=True):
                return False
        elif isinstance(a, (bool, int, float, str, Tensor)) and (type(a) is not type(b) or a != b):
            return False
    return True


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Leave generators and standard output as they were, and keep no activations."""
    with same_draws() as draw_again:
        # Gradients are on where they are on in the real call, since forwards ask; nothing is saved for a backward.
        keep_nothing = torch.autograd.graph.saved_tensors_hooks(lambda saved: None, lambda packed: torch.empty(0))
        try:
            with keep_nothing, contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            draw_again()
