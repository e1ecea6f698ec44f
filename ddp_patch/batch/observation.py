"""What a forward does with the rows of a batch, written down while it computes on batches.

A module whose every function keeps rows apart may be computed on rows from then on, whatever the values are. One that
sums over the batch, reads a value, or keeps a batch for later may not, even if that made no difference this time: a
head that starts at zero, a penalty whose weight is still 0.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..ledger import model_line
from ..structure import leaves
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
_NUMPYS = {"Tensor.numpy", "Tensor.__array__"}
_TO_NUMPY = "If what it computes keeps rows apart, say so: ddp_patch.register_rowwise"


class Observation:
    """Notes every function that looks at more than one row."""

    def __init__(
        self,
        is_own: Callable[[Tensor, Collection[Any]], bool],
        layout: Any = None,
        tries: Callable[..., TriedCall] | None = None,
        undisturbed: Callable[[bool], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Start clean.

        Args:
            is_own: tells whether a tensor that wants a gradient comes from the module's parameters alone, and from
                these nodes of its graph.
            layout: of the batch that the forward works on; None if losses inside it tie its rows together.
            tries: a function with its arguments and keyword arguments, the same on every rank; and is told whether that
                is of interest on this one.
            undisturbed: surrounds what is only tried, of the script's own code or not, and leaves all as it was.
        """
        self.layout = layout
        self.is_sized = False  # the forward asks how large the batch is
        self.reductions: list[Any] = []  # calls of loss functions that give a known reduction over the batch, and sums
        self.sums: list[Any] = []  # nodes of the graph that these left
        self.meets_rows = False  # rows are computed with what came of them, and train it
        self.mixing: str | None = None  # why the rows do not stay apart
        self._line = ""  # of the model, that ties them
        self.unknown: dict[str, None] = {}  # functions that nothing is known about
        self.studied: set[str] = set()  # those of them that were seen to keep rows apart
        self.function = "its forward"  # at work
        self.is_known = True
        self._depth = 0  # of functions at work, each called by the one before
        self._is_own = is_own
        self._tries = tries
        self.undisturbed = undisturbed
        self.sees_gradients_apart = False  # those of what every rank has whole are looked at when it is over
        self._paused = False
        self._reduces = layout is not None
        self._excused: set[int] = set()
        self._made: dict[int, weakref.ref[Any]] = {}

    def crossed(self) -> None:
        """The function at work looks at the rows of other ranks."""
        if not self._paused and self.is_known:
            self.tied(f"{self.function} looks at the whole batch", here=True)
        elif not self._paused:
            self.unknown[self.function] = None

    def tried(self, func: Any, args: Any, kwargs: Any, lasts: bool) -> TriedCall | None:
        """A function was called that nothing is known about: try where the rows of its results lie.

        Args:
            func: of torch.
            args: for it.
            kwargs: likewise.
            lasts: it is tried once, so that it is also where nothing follows from it for this forward.
        """
        if self._paused or self._tries is None:
            return None
        asked = lasts or self.mixing is None
        with self.undisturbed(False):
            tried = self._tries(func, args, kwargs, asked)
        self.meets_tried(tried)
        return tried if asked else None

    def meets_tried(self, tried: TriedCall) -> None:
        """A function was called that was tried, now or before."""
        if self._paused:
            return
        self.unknown[self.function] = None
        self.is_sized = True  # it may do otherwise with another number of rows
        if tried.dims is None:
            self.tied(f"{self.function} looks at the whole batch", here=True)
        else:
            self.studied.add(self.function)

    def sized(self) -> None:
        """The function at work tells the size of a batch."""
        if not self.is_sized and not self._paused:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == _ANSWERS:
                frame = frame.f_back
            while frame is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
                if frame.f_code.co_filename.startswith(_RULES):
                    return  # a rule asks, which does the same with any number of rows
                frame = frame.f_back
            self.is_sized = frame is None or not frame.f_code.co_filename.startswith(_TORCH)

    def tied(self, why: str, remedy: str = "", here: bool = False) -> None:
        """The rows do not stay apart.

        Args:
            why: they do not.
            remedy: what to write instead, a sentence without its full stop.
            here: it is the line that is running which ties them.
        """
        if self.mixing is None:
            self._line = model_line() if here else ""
            self.mixing = f"{why}{self._line and f', at {self._line}'}{remedy and f'. {remedy}'}"

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
        before, self._reduces = self._reduces, False
        with self.paused():
            try:
                yield
            finally:
                self._reduces = before

    @contextmanager
    def recomputed(self) -> Iterator[None]:
        """Surround what is computed again in backward, where nothing tells a loss which rows it is of."""
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    def read(self) -> None:
        """The function at work gives a value of the batch to Python."""
        if not self._paused:
            if self.mixing is not None and self._line == model_line():
                self.mixing = None  # that is what it looks at the batch for
            why = f"{self.function} reads values of the batch, and the script may branch on them"
            self.tied(why, _TO_NUMPY if self.function in _NUMPYS else "Choose with torch.where instead", here=True)

    def acted(self, what: str) -> None:
        """The forward does something outside, which rows would do with what they know."""
        why = f"its forward calls {what}, and may write down what it sees of the batch"
        self.tied(why, "Do that in the script, with what forward returns", here=True)

    def met_trained_tensor(self, tensor: Tensor) -> None:
        """Rows met a global tensor that wants a gradient."""
        if self._paused or self._is_own(tensor, ()):
            return
        if self._is_own(tensor, self.sums):
            self.meets_rows = True
        else:
            why = f"a tensor of shape {tuple(tensor.shape)} that is no parameter of the module is trained with it"
            self.tied(why, "Make it a parameter of the module, or detach it if nothing trains it", here=True)

    def met_function(self, args: Any) -> None:
        """An autograd function of the script's is called, with what it may do to the gradients of sums."""
        plain = [leaf for _, leaf in leaves(args) if isinstance(leaf, Tensor) and not hasattr(leaf, "_layout")]
        if not self._paused and any(leaf.requires_grad and not self._is_own(leaf, ()) for leaf in plain):
            self.tied("an autograd function is given a sum over the batch", here=True)

    def made(self, batch: Any) -> None:
        """A batch was made."""
        self._made[id(batch)] = weakref.ref(batch)

    def resized(self, batch: Any) -> None:
        """A batch gets other sizes, where it stands: rows that the forward is given would, and their batch not."""
        if id(batch) not in self._made:
            why = f"{self.function} changes the sizes of what the forward is given"
            self.tied(why, "Write the form that returns a new tensor", here=True)

    def excuse(self, kept: Any) -> None:
        """Torch keeps these, to compute with them again."""
        self._excused.update(id(leaf) for _, leaf in leaves(kept))

    @contextmanager
    def at(self, function: str, is_known: bool) -> Iterator[None]:
        """Surround the work of a function; rules use others."""
        before = self.function, self.is_known
        self.function, self.is_known = function, is_known
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self.function, self.is_known = before

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

    def check_kept(self, outputs: Any, arguments: list[tuple[Any, int]]) -> None:
        """Note batches that are still held by something else than the outputs.

        Args:
            outputs: of the forward.
            arguments: batches among its arguments, with ``sys.getrefcount`` of each before the call.
        """
        returned = [leaf for _, leaf in leaves(outputs)]
        ids = {id(leaf) for leaf in returned} | self._excused
        kept = [
            batch for reference in self._made.values() if (batch := reference()) is not None and id(batch) not in ids
        ]
        if kept or any(id(batch) not in ids and sys.getrefcount(batch) > count for batch, count in arguments):
            self.tied("its forward keeps a batch for later", "Return it instead")
