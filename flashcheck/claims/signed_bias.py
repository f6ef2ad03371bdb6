r"""Signed bias of bfloat16 where the maximum of a row repeats: reported, never judged.

Two keys that share the maximum have P = 1. Their values, of one sign, add to a number that
is often a midpoint of bfloat16's grid, a bit short of one place. Many small weights of the same
sign push it just past: the unnormalized output is then rounded away from zero every time. No
element leaves a bound, and the mean of many does not vanish.
Reference: Qiu and Yao, *Why Low-Precision Transformer Training Fails* (arXiv 2510.04212).
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from flashcheck.claims.claim import Claim, Finding
from flashcheck.claims.draws import draw
from flashcheck.fills import Noise
from flashcheck.formats import FORMATS, Array
from flashcheck.reporting.tally import Moments

ROWS = 20_000
KEYS = 32
CONFIDENCE = 0.99

TIES = 2
TOP = 8.0
"""The row maximum, give or take 1."""

BEHIND = 12.0
"""How far all other scores lie below it, give or take: their weights are about 6e-6."""


def signed_errors(
    ties: int = TIES,
    values: Noise = "negative",
    *,
    shift: float = 1.0,
    normalized: bool = False,
    rows: int = ROWS,
) -> Array:
    """Signed errors [rows] of one bfloat16 output each, in ulp of it.

    `ties` keys of a row share its maximum m. P = exp(s - shift m) is rounded to bfloat16 and
    multiplied by bfloat16 V in float32. The sum is rounded to bfloat16, after it was
    divided by the normalizer where `normalized`.
    """
    fmt, wide = FORMATS["bfloat16"], FORMATS["float32"]
    v = fmt.round(draw(rows, KEYS, 21, values))
    m = TOP + draw(rows, 1, 23)
    s = m - BEHIND + draw(rows, KEYS, 22)
    s[:, :ties] = m
    p = np.exp(s - shift * m)
    exact = (p * v).sum(axis=1)
    out = wide.round((fmt.round(p) * v).sum(axis=1))
    if normalized:
        l = p.sum(axis=1)
        out, exact = wide.round(out / wide.round(l)), exact / l
    return np.asarray((fmt.round(out) - exact) / fmt.ulp(exact))


def interval(errors: Array) -> tuple[float, float, float]:
    """(mean, lower, upper) by the central limit theorem."""
    moments = Moments()
    for error in errors.tolist():
        moments.add(error)
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * (moments.standard_error or 0.0)
    return moments.mean, moments.mean - reach, moments.mean + reach


def _reported(statement: str, errors: Array, how: str) -> Claim:
    mean, lower, upper = interval(errors)
    word = "chance may be all" if lower <= 0 <= upper else "not chance alone"
    return Claim(
        "Signed bias",
        statement,
        "-",
        f"{mean:+.4f} ulp, {CONFIDENCE:.0%} confidence from {lower:+.4f} to {upper:+.4f}: {word}",
        Finding.REPORTED,
        f"{how}; mean error of {len(errors):,} rows of {KEYS} keys, bfloat16 P and V",
    )


def repeated_maximum(rows: int = ROWS) -> tuple[Claim, ...]:
    """The case that is biased, and what makes each part of it necessary."""
    tied = "two keys share the maximum, all others are e^-12 of it"
    before = "sum rounded to bfloat16 before it is normalized"
    return (
        _reported(f"{tied}, V negative: {before}", signed_errors(rows=rows), "P = 1 twice"),
        _reported(
            "the same, V positive", signed_errors(values="positive", rows=rows), "P = 1 twice"
        ),
        _reported(
            "the same, V of both signs", signed_errors(values="normal", rows=rows), "P = 1 twice"
        ),
        _reported("one key has the maximum, V negative", signed_errors(1, rows=rows), "P = 1 once"),
        _reported(
            "two keys, V negative, shifted by 1.3 m instead of m",
            signed_errors(shift=1.3, rows=rows),
            "P below 1, so that it is rounded as well",
        ),
        _reported(
            "two keys, V negative, normalized in float32 and rounded once",
            signed_errors(normalized=True, rows=rows),
            "as flashcheck's contract has it",
        ),
    )
