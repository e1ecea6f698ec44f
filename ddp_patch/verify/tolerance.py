"""How far two runs may be apart: what rounding does, by the numbers' precision and the steps taken so far.

Sums over ranks are added in another order than on one process, which changes their last bits; every step of training
carries that on. So the allowance is a multiple of the precision's epsilon and grows by as much with every step. In
float64 the multiple is larger: there, training that amplifies rounding can be told from a real difference, and what is
allowed after 50 steps is still a ten-thousandth of what float32 is allowed at the first one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_HALF = ("float16", "bfloat16")
_MULTIPLE = {"float64": 2.0**16}
_USUAL_MULTIPLE = 2.0**6
SMALL = 0.01  # of the largest value in a column: differences of smaller values are relative to that
_MOST = 0.01  # never more, however long a run is: float64 tells then


@dataclass(frozen=True)
class Tolerance:
    """What is taken for the same."""

    dtype: str
    """The least precise one that is trained in."""

    def relative(self, step: int) -> float:
        """The largest relative difference after so many optimizer steps."""
        return min(_MOST, _EPSILON[self.dtype] * _MULTIPLE.get(self.dtype, _USUAL_MULTIPLE) * (1 + step))

    @property
    def noise(self) -> float:
        """The part of all gradients below which one may be nothing but rounding: in half precision one epsilon."""
        return min(self.relative(0), _EPSILON[self.dtype] if self.dtype in _HALF else _MOST)

    def exceeds(self, one: float, other: float, scale: float, step: int) -> float:
        """How many times the allowance the difference is; infinite where one is no number.

        Args:
            one: of a run.
            other: of the other run.
            scale: what the difference is relative to, if both numbers are smaller.
            step: optimizer steps taken before, or backwards if there were more.
        """
        if one == other or (math.isnan(one) and math.isnan(other)):
            return 0.0
        apart = abs(one - other)
        if not math.isfinite(apart):
            return math.inf
        allowed = self.relative(step) * max(scale, abs(one), abs(other))
        return apart / allowed if allowed else math.inf

    def described(self, steps: int) -> str:
        """Say it, for a report."""
        multiple = _MULTIPLE.get(self.dtype, _USUAL_MULTIPLE)
        first, last = self.relative(0), self.relative(steps)
        return (
            f"{self.dtype}: {multiple:.0f} times its epsilon ({_EPSILON[self.dtype]:.2g}), and as much more for each "
            f"optimizer step (or backward, if there are more), at most {_MOST:.0%}: {first:.1e} before the first step, "
            f"{last:.1e} after {steps}. "
            f"Numbers below {SMALL:.0%} of the largest in their place are relative to that. Printed numbers may also "
            "differ by one in their last digit, where that is no more than this; whole ones have to be equal"
        )


def least_precise(dtypes: set[str]) -> str:
    """Name the dtype that tolerances follow from."""
    floating = [name for name in dtypes if name in _EPSILON]
    return max(floating, key=lambda name: _EPSILON[name]) if floating else "float32"
