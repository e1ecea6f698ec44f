"""What is wrong with what was asked for."""

from __future__ import annotations

LEAST, MOST = 1e-15, 1e15  # of all numbers: what is beyond was not meant


class PlanError(ValueError):
    """A number, a name or a profile that nothing can be planned with; says the line to write."""
