"""What a value is to a rank that sees its own rows only: alike everywhere, rows, a mean over them, a sum, ..."""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """How a rank's value becomes that of all rows."""

    SAME = "alike on every rank"
    ROWS = "rows"
    COLS = "rows, laid along another dimension than the first"
    MEAN = "a mean over rows"
    SUM = "a sum over rows"
    COUNT = "a number of rows"
    PER = "one divided by a number of rows"
    OTHER = "neither a sum nor a mean"


@dataclass(frozen=True)
class Value:
    """A kind, with the reason where it is none that can be reduced."""

    kind: Kind
    reason: str = ""
    listed: bool = False  # a list of such values
    items: tuple[Value, ...] = ()  # of a tuple
    over: ast.For | None = None  # the loop whose rows of all ranks it sums up

    @property
    def of_rows(self) -> bool:
        """It differs from rank to rank."""
        return self.kind is not Kind.SAME


SAME, ROWS, COLS = Value(Kind.SAME), Value(Kind.ROWS), Value(Kind.COLS)
MEAN, SUM, COUNT, PER = Value(Kind.MEAN), Value(Kind.SUM), Value(Kind.COUNT), Value(Kind.PER)
SHAPE = "shape"  # of rows: how many, and what is alike on every rank
PACKED = "packed"  # rows that are not as many as a rank's samples are
SORTED = "sorted"  # rows in another order, which is that of all of them once some are picked
STACKED = "stacked"  # rows along another dimension than the first, in some of its values
TOKENS = "is a mean over tokens, or over rows that were picked, and each rank has another number of them"
WEIGHTED = "is a mean weighted by class, and each rank's weights have another sum"
ELSEWHERE = "which is not in this file"
WHOLE = "of the whole batch"  # alike on every rank, with a gradient for each rank's rows
ALL_ROWS = "looks at all rows of a batch"
IN_BATCH = "compares the rows of a batch with each other, and a rank has only its own"
MIXED = "combines rows with what is made of all of them"
_MADE_OF_ALL = {Kind.MEAN, Kind.SUM, Kind.COUNT, Kind.PER}


def other(reason: str) -> Value:
    """Make a value that no sum or mean over ranks gives."""
    return Value(Kind.OTHER, reason)


def join(a: Value, b: Value) -> Value:
    """Tell what may be either."""
    if a == b or not b.of_rows:
        return a
    if not a.of_rows:
        return b
    if a.kind is b.kind:
        return Value(a.kind, a.reason or b.reason, a.listed or b.listed)
    if {a.kind, b.kind} == {Kind.SUM, Kind.COUNT}:
        return SUM
    return a if a.kind is Kind.OTHER else b if b.kind is Kind.OTHER else other(f"is {a.kind.value} or {b.kind.value}")


def add(a: Value, b: Value, zero: bool = False) -> Value:
    """Tell what a sum or difference is; ``zero``: the one that is alike everywhere is 0."""
    kinds = {a.kind, b.kind}
    if (found := _with_rows(a, b)) is not None:
        return found
    if kinds == {Kind.SAME}:
        return a if a.reason == WHOLE else Value(Kind.SAME, b.reason)
    if Kind.SAME in kinds:
        found = a if a.of_rows else b
        return found if zero or found.kind is Kind.MEAN else other("adds a constant to a sum over rows")
    if len(kinds) == 1:
        return Value(a.kind)
    return SUM if kinds == {Kind.SUM, Kind.COUNT} else other(f"adds {a.kind.value} to {b.kind.value}")


def multiply(a: Value, b: Value) -> Value:
    """Tell what a product is."""
    kinds = {a.kind, b.kind}
    if WHOLE in (a.reason, b.reason):
        return _of_whole(a, b)
    if (found := _with_rows(a, b)) is not None:
        return found
    if Kind.SAME in kinds:
        return Value((a if a.of_rows else b).kind) if kinds != {Kind.SAME} else SAME
    if kinds == {Kind.MEAN, Kind.COUNT}:
        return SUM
    if kinds in ({Kind.SUM, Kind.PER}, {Kind.COUNT, Kind.PER}):
        return MEAN
    return other(f"multiplies {a.kind.value} by {b.kind.value}")


def divide(a: Value, b: Value) -> Value:
    """Tell what a quotient is."""
    if WHOLE in (a.reason, b.reason):
        return _of_whole(a, b)
    if b.kind is Kind.COUNT and a.kind in (Kind.SAME, Kind.SUM, Kind.COUNT):
        return PER if a.kind is Kind.SAME else MEAN
    if b.kind is Kind.SAME or a.kind is Kind.OTHER:
        return Value(a.kind, a.reason) if a.of_rows else SAME
    if Kind.ROWS in (a.kind, b.kind) or Kind.COLS in (a.kind, b.kind):
        return multiply(a, b)
    if a.kind is Kind.SAME and b.kind is not Kind.OTHER:
        return other(f"is not linear in {b.kind.value}")
    return b if b.kind is Kind.OTHER else other(f"divides {a.kind.value} by {b.kind.value}")


def _with_rows(a: Value, b: Value) -> Value | None:
    """Tell what rows are together with something else; nothing where neither has rows, and each can be reduced."""
    kinds = {a.kind, b.kind}
    for kind in (Kind.OTHER, Kind.COLS, Kind.ROWS):
        if kind in kinds:
            if kind is Kind.COLS and Kind.ROWS in kinds:
                return other(IN_BATCH)
            if kind is not Kind.OTHER and kinds & _MADE_OF_ALL:
                return other(MIXED)
            return a if a.kind is kind else b
    return None


def _of_whole(a: Value, b: Value) -> Value:
    """Tell what a loss of the whole batch is, times or divided by something else."""
    mixed = next((value for value in (a, b) if value.of_rows), None)
    return Value(Kind.SAME, WHOLE) if mixed is None else other(f"is that of the whole batch and {mixed.kind.value}")


def average(value: Value) -> Value:
    """Tell what the mean over everything in a value is."""
    if value.listed:
        return Value(value.kind, value.reason) if value.kind not in (Kind.ROWS, Kind.COLS) else MEAN
    if value.kind in (Kind.ROWS, Kind.COLS):
        return other(TOKENS) if value.reason == PACKED else MEAN
    return value


def total(value: Value) -> Value:
    """Tell what the sum of everything in a value is."""
    if value.listed:
        return Value(value.kind, value.reason) if value.kind not in (Kind.ROWS, Kind.COLS) else SUM
    return SUM if value.kind in (Kind.ROWS, Kind.COLS) else value
