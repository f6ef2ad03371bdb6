"""Value: what a tier of the oracle says about one call of attention, with its radius."""

from __future__ import annotations

from dataclasses import dataclass

from flashcheck.formats import Array


@dataclass(frozen=True, eq=False)
class Value:
    """The exact result of attention, enclosed.

    out, out_low, out_radius are [B, Hq, Lq, Dv]; lse, lse_low, lse_radius are [B, Hq, Lq].
    The value is the unevaluated sum of a pair of float64 numbers, so that float64 kernels
    can be judged too, and the radius encloses the exact real result:

        |exact out - (out + out_low)| <= out_radius,
        |exact lse - (lse + lse_low)| <= lse_radius.

    `out` is the float64 nearest to the pair. A row that sees no key has out 0, lse -inf
    and radius 0. A radius is infinite where the tier claims nothing (the value may then be
    anything, NaN too); every array is NaN in rows that were not computed.
    """

    out: Array
    out_low: Array
    lse: Array
    lse_low: Array
    out_radius: Array
    lse_radius: Array
    tier: str
