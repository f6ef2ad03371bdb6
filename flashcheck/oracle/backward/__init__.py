"""The oracle of the backward: exact gradients, each with the radius of an interval that holds it.

Two tiers behind one function: float64 with an a-priori radius, and the definition in mpmath
for the rows of dq and the keys of dk and dv whose radius is more than 1/100 of the bound.
"""

from __future__ import annotations

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle import SHARE
from flashcheck.oracle.backward import definition, float64
from flashcheck.oracle.backward.gradients import Enclosure as Enclosure
from flashcheck.oracle.backward.gradients import Gradients as Gradients
from flashcheck.oracle.float64 import attention

Three = tuple[Array, Array, Array]


def gradients(
    x: Inputs,
    dout: Array,
    back: float64.Backward | None = None,
    bounds: Three | None = None,
    got: Three | None = None,
) -> Gradients:
    """The exact gradients of sum(out * dout), dout [B, Hq, Lq, Dv] in float64.

    `back` is the float64 tier's result where it is at hand. `bounds` on (dq, dk, dv) say how
    fine the radius has to be; without them it is what float64 gives. Where all bounds are
    infinite nothing is computed again, nor where a kernel's gradients `got` are within their
    bounds wherever in the radius the exact value lies.
    Errors: ValueError for the wrong shape of dout.
    """
    if back is None:
        back = float64.backward(x, dout, attention(x))
    fast = Gradients(back.dq, back.dk, back.dv, "float64")
    if bounds is None:
        return fast
    results = got if got is not None else (None, None, None)
    in_rows, dk, dv = map(_coarse, (fast.dq, fast.dk, fast.dv), bounds, results)
    in_keys = np.asarray(dk | dv, bool)
    rows, keys = _places(in_rows), _places(in_keys)
    if not rows and not keys:
        return fast
    exact = definition.gradients(x, dout, rows, keys)
    return Gradients(
        _pick(in_rows, exact.dq, fast.dq),
        _pick(in_keys, exact.dk, fast.dk),
        _pick(in_keys, exact.dv, fast.dv),
        f"float64, mpmath for {len(rows)} rows and {len(keys)} keys",
    )


def _places(where: Bools) -> list[definition.Place]:
    return [(int(b), int(h), int(i)) for b, h, i in np.argwhere(where)]


def _coarse(exact: Enclosure, bound: Array, got: Array | None) -> Bools:
    """Rows or keys whose radius is too large for the bound, a kernel's result being undecided."""
    coarse = (exact.radius > SHARE * bound) & np.isfinite(bound)
    if got is not None:
        with np.errstate(invalid="ignore"):
            error = np.abs((got - exact.value) - exact.low)
            coarse &= ~(error + exact.radius <= bound)
    return np.asarray(coarse.any(-1), bool)


def _pick(where: Bools, a: Enclosure, b: Enclosure) -> Enclosure:
    at = where[..., None]
    return Enclosure(
        np.where(at, a.value, b.value),
        np.where(at, a.low, b.low),
        np.where(at, a.radius, b.radius),
    )
