"""What a forward does with the rows of a batch, written down while it computes on batches.

A module whose every function keeps rows apart may be computed on rows from then on, whatever the values are. One that
sums over the batch, reads a value, or keeps a batch for later may not, even if that made no difference this time: a
head that starts at zero, a penalty whose weight is still 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..ledger import model_line
from ..structure import leaves
from .kept_batches import KeptBatches
from .picks import Picks
from .tried_calls import TriedCall

_TORCH = str(Path(torch.__file__).parent) + os.sep  # not torchvision's
_ANSWERS = str(Path(__file__).parent / "rules" / "metadata.py")
_RULES = str(Path(__file__).parent / "rules") + os.sep
_PASSED_OVER = (
    str(Path(__file__).parents[1]),
    torch.overrides.__file__,
    f"{_TORCH}_tensor.py",
    f"{_TORCH}utils{os.sep}_device.py",  # hands calls on, under torch.set_default_device
)
ASSERTING = torch.distributions.distribution.__file__
_NUMPYS = {"Tensor.numpy", "Tensor.__array__"}
_TO_NUMPY = "If what it computes keeps rows apart, say so: ddp_patch.register_rowwise"


def is_asserted() -> bool:
    """Tell whether ``torch.distributions`` asks for a value: it raises unless its arguments are sound."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == ASSERTING


class Observation:
    """Notes every function that looks at more than one row."""

    def __init__(
        self,
        is_own: Callable[[Tensor, Collection[Any]], bool],
        layout: Any = None,
        tries: Callable[..., TriedCall] | None = None,
        preserving_state: Callable[..., AbstractContextManager[Any]] = lambda code: nullcontext(),
    ) -> None:
        """Start clean.

        Args:
            is_own: tells whether a tensor that wants a gradient comes from the module's parameters alone, and from
                these nodes of its graph.
            layout: of the batch that the forward works on; None if losses inside it tie its rows together.
            tries: a function with its arguments and keyword arguments, the same on every rank; and is told whether that
                is of interest on this one.
            preserving_state: surrounds a trial, and leaves all as it was; is told which code of the script's it runs.
        """
        self.layout = layout
        self.gathers_what_it_made = False  # what the forward made of the batch size was needed whole
        self.is_size_dependent = False  # the forward asks how large the batch is
        self.reductions: list[Any] = []  # calls of loss functions that give a known reduction over the batch, and sums
        self.sums: list[Any] = []  # nodes of the graph that these left
        self.feeds_rows = False  # rows are computed with what came of them, and train it
        self.why_not_split: str | None = None  # if rows cannot be computed apart
        self._line = ""  # of the model, that forbids the split
        self.unknown_functions: dict[str, None] = {}  # that nothing is known about
        self.rowwise_functions: set[str] = set()  # those of them that were seen to keep rows apart
        self.function = "its forward"  # at work
        self.is_function_known = True
        self._depth = 0  # of functions at work, each called by the one before
        self._is_own = is_own
        self._tries = tries
        self.preserving_state = preserving_state
        self.only_calculates = False  # an autograd function does, with the floats that it is given
        self.has_frozen = False  # parameters are not trained, as yet
        self.sees_gradients_apart = False  # those of what every rank has whole are looked at when it is over
        self._paused = False
        self._reduces = layout is not None
        self.kept = KeptBatches()
        self.places: tuple[Any, ...] = ()  # attributes in which the forward leaves batches
        self.picks = Picks()
        self.alive: list[Tensor] | None = None  # what gradients are added to, once it was looked for

    def note_whole_batch_use(self, batch: Any = None) -> None:
        """Note that the function at work looks at the rows of other ranks: of this batch, if it is gathered."""
        self.gathers_what_it_made = self.gathers_what_it_made or getattr(batch, "_is_of_size", False)
        if not self._paused and self.is_function_known:
            self.forbid_split(f"{self.function} looks at the whole batch", at_line=True)
        elif not self._paused:
            self.unknown_functions[self.function] = None

    def try_function(self, func: Any, args: Any, kwargs: Any, is_cacheable: bool) -> TriedCall | None:
        """Try where the rows lie in the results of a function that nothing is known about.

        Args:
            func: of torch.
            args: for it.
            kwargs: likewise.
            is_cacheable: later calls are answered by it, so that it is tried even if nothing follows for this forward.
        """
        if self._paused or self._tries is None:
            return None
        is_wanted = is_cacheable or self.why_not_split is None
        with self.preserving_state(None):
            tried = self._tries(func, args, kwargs, is_wanted)
        self.note_tried_function(tried)
        return tried if is_wanted else None

    def note_tried_function(self, tried: TriedCall) -> None:
        """Note a call of a function that was tried, now or before."""
        if self._paused:
            return
        self.unknown_functions[self.function] = None
        self.is_size_dependent = True  # it may do otherwise with another number of rows
        if tried.dims is None:
            self.forbid_split(f"{self.function} looks at the whole batch", at_line=True)
        else:
            self.rowwise_functions.add(self.function)

    def note_size_query(self) -> None:
        """Note that the function at work tells the size of a batch."""
        if not self.is_size_dependent and not self._paused:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == _ANSWERS:
                frame = frame.f_back
            while frame is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
                if frame.f_code.co_filename.startswith(_RULES):
                    return  # a rule asks, which does the same with any number of rows
                frame = frame.f_back
            self.is_size_dependent = frame is None or not frame.f_code.co_filename.startswith(_TORCH)

    def forbid_split(self, reason: str, remedy: str = "", at_line: bool = False) -> None:
        """Note that the forward cannot be computed on each rank's rows alone.

        Args:
            reason: why not.
            remedy: what to write instead, a sentence without its full stop.
            at_line: the reason names the model's line that is running.
        """
        if self.why_not_split is None:
            self._line = model_line() if at_line else ""
            self.why_not_split = f"{reason}{self._line and f', at {self._line}'}{remedy and f'. {remedy}'}"

    @property
    def may_reduce(self) -> bool:
        """Whether a loss that is computed now can be computed on rows as well."""
        return self._reduces

    @property
    def is_paused(self) -> bool:
        """Whether what happens now is nothing that rows would have otherwise."""
        return self._paused

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Surround a loss function, which may look at the whole batch."""
        with self._not_reducing(), self.paused():
            yield

    @contextmanager
    def recomputed(self) -> Iterator[None]:
        """Surround what is computed again in backward, where nothing tells a loss which rows it is of."""
        with self._not_reducing(), self.kept.made_again():
            yield

    @contextmanager
    def _not_reducing(self) -> Iterator[None]:
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def note_value_read(self) -> None:
        """Note that the function at work gives a value of the batch to Python."""
        if not self._paused:
            if self.why_not_split is not None and self._line == model_line():
                self.why_not_split = None  # that is what it looks at the batch for
            why = f"{self.function} reads values of the batch, and the script may branch on them"
            remedy = _TO_NUMPY if self.function in _NUMPYS else "Choose with torch.where instead"
            self.forbid_split(why, remedy, at_line=True)

    def note_side_effect(self, what: str) -> None:
        """Note that the forward acts on the world outside, which rows would do with what they know."""
        why = f"its forward calls {what}, and may write down what it sees of the batch"
        self.forbid_split(why, "Do that in the script, with what forward returns", at_line=True)

    def note_trained_tensor(self, tensor: Tensor) -> None:
        """Note that rows met a global tensor that requires a gradient."""
        if self._paused or self._is_own(tensor, ()):
            return
        if self._is_own(tensor, self.sums):
            self.feeds_rows = True
        else:
            why = f"a tensor of shape {tuple(tensor.shape)} that is no parameter of the module is trained with it"
            self.forbid_split(why, "Make it a parameter of the module, or detach it if nothing trains it", at_line=True)

    def note_autograd_function(self, args: Any) -> None:
        """Note a call of the script's own autograd function, with what it may do to the gradients of sums."""
        plain = [leaf for _, leaf in leaves(args) if isinstance(leaf, Tensor) and not hasattr(leaf, "_layout")]
        if not self._paused and any(leaf.requires_grad and not self._is_own(leaf, ()) for leaf in plain):
            self.forbid_split("an autograd function is given a sum over the batch", at_line=True)

    def note_attribute(self, value: Any) -> None:
        """Note what an attribute is set to: a batch that backward computes again would be this rank's rows there."""
        if self.kept.is_again and any(hasattr(leaf, "_layout") for _, leaf in leaves(value)):
            self.forbid_split("its forward keeps a batch for later, within a checkpoint", "Return it instead")

    def note_resize(self, batch: Any) -> None:
        """Note a batch that is resized in place: rows that the forward is given would be, and their batch not."""
        if not self.kept.is_made(batch):
            why = f"{self.function} changes the sizes of what the forward is given"
            self.forbid_split(why, "Write the form that returns a new tensor", at_line=True)

    @contextmanager
    def calling(self, function: str, is_known: bool) -> Iterator[None]:
        """Surround the work of a function; rules use others."""
        before = self.function, self.is_function_known
        self.function, self.is_function_known = function, is_known
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.function, self.is_function_known = before

    @property
    def is_asked_by_forward(self) -> bool:
        """Whether the function at work is called by the forward itself, and by no rule."""
        return self._depth == 1 and not self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Surround what rows have exactly as well: BatchNorm."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before
