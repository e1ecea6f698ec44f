"""What was seen of functions that have no rule, when they were tried on rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from .layout import RowPlacement

_Dims = Mapping[str, RowPlacement | None]  # of results, by path
_MOST = 4096  # forms of calls, of which a script with lengths of many kinds may have any number


@dataclass(frozen=True)
class TriedCall:
    """A call of a function, tried on rows."""

    dims: _Dims | None  # where results have their rows; None if they need the whole batch
    cut: frozenset[str] = frozenset()  # tensors that every rank has whole, with a row for each of the batch, by path
    is_repeatable: bool = True  # another call of the same form does the same: it draws nothing, and reads no value


@dataclass
class TriedCalls:
    """Calls of a session, by their forms, the same on every rank."""

    # Tries a function with its arguments on every rank, given whether that is of interest on this one.
    agreed: Callable[..., TriedCall] = lambda func, args, kwargs, is_wanted: TriedCall(None)
    _calls: dict[Hashable, TriedCall] = field(default_factory=dict)
    _sighted: set[Hashable] = field(default_factory=set)

    def lookup(self, form: Hashable | None) -> TriedCall | None:
        """What such a call does; None where that is not known, or is another thing in each."""
        its = self._calls.get(form)
        return its if its is not None and its.is_repeatable else None

    def note(self, form: Hashable | None, tried: TriedCall) -> None:
        """Keep what was seen of a call. All ranks come here."""
        if form is not None and len(self._calls) < _MOST:
            self._calls[form] = tried

    def is_due(self, form: Hashable | None) -> bool:
        """Tell whether such a call has come before, and was not tried. All ranks come here."""
        if form is None or form in self._calls or len(self._calls) >= _MOST:
            return False
        if form in self._sighted:
            return True
        if len(self._sighted) < _MOST:
            self._sighted.add(form)
        return False
