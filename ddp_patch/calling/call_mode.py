"""The ways in which a call of a module is carried out."""

from __future__ import annotations

from enum import Enum


class CallMode(Enum):
    """What a module computes on."""

    ROWS = "this rank's rows"
    BATCHES = "batches, as it is written: its functions split, or not, one by one"
    WHOLE = "plain tensors that hold the whole, as it is written"
    OBSERVED = "batches, and nothing inside of it is looked at"
