"""Floating-point formats: unit roundoff, range, subnormals and rounding to nearest.

The unit roundoff u bounds the relative error of one rounding to nearest in the normal
range; half the smallest subnormal bounds its absolute error below that.
Reference: Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    `precision` counts significand bits, the hidden one included; `min_exponent` is the
    exponent of the smallest normal number.
    """

    name: str
    precision: int
    min_exponent: int
    max_finite: float

    @property
    def unit_roundoff(self) -> float:
        """u: half the distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.precision)

    @property
    def min_normal(self) -> float:
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        return math.ldexp(1.0, self.min_exponent - self.precision + 1)

    @property
    def underflow(self) -> float:
        """Absolute error of one rounding below the normal range: half the smallest subnormal.

        For float64 that is no float64, and the smallest one stands for it.
        """
        return max(self.min_subnormal / 2, math.ldexp(1.0, -1074))

    def round(self, x: ArrayLike) -> Array:
        """Round float64 values to the nearest number of this format, ties to even.

        The result is float64 and exact; beyond the largest finite number it is infinite.
        """
        value = np.asarray(x, np.float64)
        if self.name == "float64":
            return value
        _, exponent = np.frexp(value)
        lowest = self.min_exponent + 1
        ulp = np.maximum(exponent, lowest) - self.precision
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.ldexp(np.rint(np.ldexp(value, -ulp)), ulp)
        overflow = np.abs(rounded) > self.max_finite
        infinity = np.copysign(np.inf, rounded)
        return np.asarray(np.where(overflow, infinity, rounded), np.float64)

    def ulp(self, x: ArrayLike) -> Array:
        """The spacing of the format's numbers at |x|: the unit in the last place."""
        _, exponent = np.frexp(np.asarray(x, np.float64))
        ulp = np.maximum(exponent, self.min_exponent + 1) - self.precision
        return np.asarray(np.ldexp(1.0, ulp), np.float64)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("float64", 53, -1022, float(np.finfo(np.float64).max)),
        Format("float32", 24, -126, (2 - 2.0**-23) * 2.0**127),
        Format("tf32", 11, -126, (2 - 2.0**-10) * 2.0**127),
        Format("bfloat16", 8, -126, (2 - 2.0**-7) * 2.0**127),
        Format("float16", 11, -14, 65504.0),
        Format("float8_e4m3fn", 4, -6, 448.0),
        Format("float8_e5m2", 3, -14, 57344.0),
    )
}

# The dtypes that a kernel can be gated in, widest first.
DTYPES: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")

# The dtypes of inputs whose output has another: gradients of them have no bound.
FLOAT8: tuple[str, ...] = ("float8_e4m3fn", "float8_e5m2")
FLOAT8_OUTPUTS: tuple[str, ...] = ("bfloat16", "float16")

EVERY: tuple[str, ...] = (*DTYPES, *FLOAT8)
