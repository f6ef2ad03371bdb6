"""The oracle: the exact result of a problem, with the radius of an interval that holds it.

Tiers behind one function: float64 with an a-priori radius; double-double for float64
kernels; and the definition in mpmath for the rows whose radius is more than 1/100 of the
bound that it is to be compared with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle import definition, double_double, float64
from flashcheck.oracle.value import Value as Value

SHARE = 0.01
"""Largest share of the bound that the oracle's own uncertainty may take."""


def evaluate(
    x: Inputs,
    at: float64.Attention,
    out_bound: Array,
    lse_bound: Array,
    out: Array | None = None,
    lse: Array | None = None,
) -> Value:
    """The exact out [B, Hq, Lq, Dv] and lse [B, Hq, Lq], each with its radius.

    `at` is the float64 tier's result for the same inputs; the bounds say how fine the radius
    has to be. Rows where both bounds are infinite are never escalated, nor are rows of a
    kernel's `out` and `lse` that are within their bounds wherever in the radius the exact
    value lies.
    """
    if x.dtype == "float64":
        value = double_double.attention(x)
        # Values that are all zero give zero exactly, however small the bound is.
        zero = (x.visible @ np.abs(at.v)) == 0
        value = replace(value, out_radius=np.where(zero, 0.0, value.out_radius))
    else:
        zero_out, zero_lse = np.zeros_like(at.out), np.zeros_like(at.lse)
        value = Value(at.out, zero_out, at.lse, zero_lse, at.out_radius, at.lse_radius, "float64")
    coarse = _coarse(out, value.out, value.out_low, value.out_radius, out_bound).any(-1)
    coarse |= _coarse(lse, value.lse, value.lse_low, value.lse_radius, lse_bound)
    if not coarse.any():
        return value
    rows = [(int(b), int(h), int(i)) for b, h, i in np.argwhere(coarse)]
    exact = definition.attention(x, rows)
    pick = coarse[..., None]
    return Value(
        out=np.where(pick, exact.out, value.out),
        out_low=np.where(pick, exact.out_low, value.out_low),
        lse=np.where(coarse, exact.lse, value.lse),
        lse_low=np.where(coarse, exact.lse_low, value.lse_low),
        out_radius=np.where(pick, exact.out_radius, value.out_radius),
        lse_radius=np.where(coarse, exact.lse_radius, value.lse_radius),
        tier=f"{value.tier}, mpmath for {len(rows)} rows",
    )


def _coarse(got: Array | None, exact: Array, low: Array, radius: Array, bound: Array) -> Bools:
    """Where the radius is too large for the bound and a kernel's result is not decided by it."""
    coarse = (radius > SHARE * bound) & np.isfinite(bound)
    if got is not None:
        with np.errstate(invalid="ignore"):
            coarse &= ~(np.abs((got - exact) - low) + radius <= bound)
    return coarse
