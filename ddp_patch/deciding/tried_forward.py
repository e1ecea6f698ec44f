"""What a forward does while it is tried on copies: random draws, values that are read, parameters that are written.

A forward that reads a value may branch on it: in this call its rows are independent, in a later one they are not. What
is computed from constants alone, such as a mask made in forward, has the same values in every call of a form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..batch.collectives import NOT_GIVEN, Refused
from ..batch.spread import SPREADING
from ..batch.tensor import BatchTensor
from ..batch.transforms import is_wrapped
from ..batch.world import World
from ..ledger import model_line
from ..structure import map_leaves
from . import resting_norms
from .given_numbers import GivenNumbers
from .index_bounds import check_bounds
from .kernel_dropout import DROPPING, at_rest
from .memory import storages_of, tensors_of, written_by
from .readers import KERNELS, TORCH, reader


def note_hook() -> None:
    """Note that a forward registers a hook on an activation, if this is a trial."""
    if TriedForward.running is not None:
        TriedForward.running.hooked = TriedForward.running.hooked or model_line()


def note_apply(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note what an autograd function is given, of which no function mode hears, if this is a trial."""
    if TriedForward.running is not None:
        TriedForward.running.numbers.add("apply", args, kwargs)


class TriedForward(TorchDispatchMode):
    """Random numbers become constants, so that rows and whole draw alike; readings of values are noted."""

    _DRAWS = (
        "rand", "normal", "bernoulli", "uniform", "exponential", "geometric", "cauchy", "poisson", "multinomial",
        "binomial", "gamma", "dirichlet",
    )  # fmt: skip
    running: ClassVar[TriedForward | None] = None

    def __init__(self, module: nn.Module, batch: Iterable[Tensor] = (), whole: Iterable[Tensor] = ()) -> None:
        """Note nothing yet.

        Args:
            module: with whose parameters copies are tried.
            batch: what it is given of the batch.
            whole: instead, where it is given all of it: what it draws is of that, or beside it.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.looked = ""  # at values that are not constants: the line that did
        self._draws: dict[tuple[Any, ...], str] = {}  # what was drawn, in which shape: the line that did
        self._drawn_beside: list[tuple[Any, ...]] = []  # the same, for nothing of the batch
        self.is_size_dependent = False  # the forward asks how large the batch is
        self.hooked = ""  # activations: the line that did
        self.numbers = GivenNumbers(self._is_plain)
        self.normed: list[int] = []  # entries for each channel that norms were given, in their order
        self.drew_own = False  # from a generator of its own, which may be one that it makes, and seeds, in every call
        self._shared = {p.untyped_storage().data_ptr() for p in module.parameters() if p.layout is torch.strided}
        # What a tensor was computed from, by storage, whose address a weak reference keeps from being used again.
        self._constants: set[StorageWeakRef] = set()  # nothing that the forward did not make itself
        self._of_batch = {storage for tensor in batch for storage in storages_of(tensor)}
        self._of_whole = {storage for tensor in whole for storage in storages_of(tensor)}
        self._copies = _Copies(self)

    def __enter__(self) -> Any:
        """Begin to note."""
        TriedForward.running = self
        self._copies.__enter__()  # type: ignore[no-untyped-call]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """Note no more."""
        TriedForward.running = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._copies.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute, and note."""
        kwargs = kwargs or {}
        name = func.name().split("::")[-1].split(".")[0]
        written = written_by(func, args, kwargs) if func._schema.is_mutable else []
        self.refuse_written(written)
        # What is made beside a tensor, in its type, holds nothing of it.
        tensors = [] if name.startswith("new_") else list(tensors_of((args, kwargs)))
        of_batch = any(self.is_in(self._of_batch, tensor) for tensor in tensors)
        of_whole = any(self.is_in(self._of_whole, tensor) for tensor in tensors)
        has_dynamic_shape = torch.Tag.dynamic_output_shape in func.tags and not (
            name == "index" and _are_numbers(args[1])
        )
        if torch.Tag.data_dependent_output in func.tags or (has_dynamic_shape and not of_batch):
            if name == "_local_scalar_dense" and self.is_count(args[0]):
                self.is_size_dependent = True
            else:
                self.note_reading(tensors)
        rests = name == "native_dropout"
        if args and isinstance(args[0], Tensor) and not args[0].is_cpu:
            check_bounds(name, args)
        result = _no_dropout(args[0]) if rests else func(*args, **kwargs)
        seeded = torch.Tag.nondeterministic_seeded in func.tags and not rests
        self.drew_own |= kwargs.get("generator") not in (None, torch.default_generator)
        drawn = seeded and any(draw in name for draw in self._DRAWS)
        if seeded or rests:
            draw = name, *(tensor.shape for tensor in (*tensors_of(result), *written))
            self._draws.setdefault(draw, model_line())
            if not of_batch and not of_whole:
                self._drawn_beside.append(draw)
        if drawn:
            result = map_leaves(_constant, result)
        made = {storage for tensor in (*tensors_of(result), *written) for storage in storages_of(tensor)}
        self._constants -= made
        self._of_batch -= made
        self._of_whole -= made
        if of_whole:
            self._of_whole |= made
        if of_batch:
            self._of_batch |= made
        elif not drawn and (name == "lift_fresh" or self._are_constant(tensors)):  # lifted: made of Python's numbers
            self._constants |= made
        return result

    @property
    def drew(self) -> bool:
        """Whether random numbers were drawn."""
        return bool(self._draws)

    def drew_beside(self, whole: TriedForward) -> str:
        """Give the line that draws something which has one shape for some rows and for all: it is not of the batch.

        Args:
            whole: the same on all rows.
        """
        return next((self._draws[draw] for draw in self._drawn_beside if draw in whole._drawn_beside), "")

    def note_dropping(self, name: str, tensors: list[Tensor]) -> None:
        """Note that a function drops inside a kernel, which is at rest."""
        draw = name, *(tensor.shape for tensor in tensors[:1])
        self._draws.setdefault(draw, model_line())
        if not any(self.is_in(self._of_batch | self._of_whole, tensor) for tensor in tensors):
            self._drawn_beside.append(draw)

    def note_spread(self, batch: BatchTensor) -> None:
        """Note that a constant was repeated for each row."""
        self._of_whole.update(storage for form in batch.forms for storage in storages_of(form))

    def note_reading(self, tensors: list[Tensor]) -> None:
        """Note that Python, or the shape of a tensor, is told the values of tensors."""
        if not self.looked and not self._are_constant(tensors) and not reader().endswith(KERNELS):
            self.looked = model_line()

    def note_shape(self, tensor: Tensor) -> None:
        """Note that Python is told the sizes of a tensor, or how many numbers it has."""
        self.is_size_dependent = self.is_size_dependent or self.is_in(self._of_batch, tensor)

    def is_count(self, tensor: Tensor) -> bool:
        """Tell whether a number that is read says how many there are of something, and is told as sizes are."""
        return False

    def refuse_written(self, written: list[Tensor]) -> None:
        """Refuse that the module's parameters, which its copies share, are written to."""
        if any(tensor.untyped_storage().data_ptr() in self._shared for tensor in written if tensor.numel()):
            raise Refused("its forward writes to its parameters")

    @staticmethod
    def refuse_mixed(tensors: list[Tensor]) -> None:
        """Refuse rows beside a batch that the forward was not given: a single row fits any, and ranks would part."""
        batches = sum(isinstance(tensor, BatchTensor) for tensor in tensors)
        if 0 < batches < len(tensors) and World.get().skips_collectives:
            raise Refused(NOT_GIVEN)

    def is_of_batch(self, tensor: Tensor) -> bool:
        """Tell whether a tensor was computed of the batch."""
        return self.is_in(self._of_batch, tensor)

    def _is_plain(self, tensor: Tensor) -> bool:
        if type(tensor) not in (Tensor, nn.Parameter) or is_wrapped(tensor):  # a batch, say, or one without memory
            return False
        return not self.is_of_batch(tensor)

    def _are_constant(self, tensors: list[Tensor]) -> bool:
        return all(self.is_in(self._constants, tensor) for tensor in tensors)

    @staticmethod
    def is_in(memory: set[StorageWeakRef], tensor: Tensor) -> bool:
        """Tell whether all of a tensor's memory is among some."""
        storages = storages_of(tensor)
        return bool(storages) and memory.issuperset(storages)


class _Copies(TorchFunctionMode):
    """Notes what hands values over to Python or NumPy below torch's dispatcher."""

    _COPIES = ("tolist", "numpy", "__array__", "__dlpack__")
    _SHAPES = ("size", "__len__", "numel", "nelement")

    def __init__(self, trial: TriedForward) -> None:
        super().__init__()
        self._trial = trial

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, of = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        if name in self._COPIES:
            self._trial.note_reading(list(tensors_of(args)))
        elif (name in self._SHAPES or of is Tensor.shape) and not reader().startswith(TORCH):
            self._trial.note_shape(args[0])
        elif of is Tensor.data and name == "__set__":
            self._trial.refuse_written([args[0]])
        kwargs = kwargs or {}
        self._trial.numbers.add(name, args, kwargs)
        self._trial.refuse_mixed(list(tensors_of((args, kwargs))))
        if name in DROPPING and (resting := at_rest(name, args, kwargs)) is not None:
            self._trial.note_dropping(name, list(tensors_of(args)))
            args, kwargs = resting
        norm = resting_norms.at_rest(func, args, kwargs)
        if norm is not None:
            args, kwargs = norm.args, norm.kwargs
            self._trial.normed.append(norm.entries)
        result = func(*args, **kwargs)
        if func in SPREADING and isinstance(result, BatchTensor):
            self._trial.note_spread(result)
        return result


def _are_numbers(indices: Iterable[Tensor | None]) -> bool:
    """Tell indices by which as many entries are picked as there are numbers in them: no mask is among them."""
    return all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in indices)


def _no_dropout(tensor: Tensor) -> tuple[Tensor, Tensor]:
    return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)


def _constant(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        leaf.fill_(0.5 if leaf.is_floating_point() else 0)
    return leaf
