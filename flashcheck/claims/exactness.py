"""Exactness: the online form against a direct softmax, and the range of exp without the max."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np

from flashcheck.claims.claim import Claim, finding, same_digits, same_magnitude
from flashcheck.claims.draws import draw, scores_and_values
from flashcheck.claims.recurrence import (
    Merge,
    Numbers,
    State,
    direct,
    merge,
    online,
    start,
    unshifted,
)
from flashcheck.formats import FORMATS, Array
from flashcheck.reporting.wording import number

KEYS = 1000
ROWS = 500
DIM = 64
LARGE = 1e4

# exp of anything lower is 0 in float64: half of its smallest number is 2^-1075.
_VANISHES = 1075 * math.log(2)

Online = Callable[..., State]


def exact_in_rationals(online: Online = online) -> Claim:
    """The final a / l is softmax attention, without any error."""
    keys, rows, dim, block = 50, 20, 4, 7
    s = _integers(draw(rows, keys, seed=1) * 8)
    v = _integers(draw(keys, dim, seed=2) * 8)
    got = online(s, v, block=block, exp=_power_of_two).output()
    worst = np.abs(got - direct(s, v, exp=_power_of_two)).max()
    return Claim(
        "Exactness",
        "the final a / l equals softmax attention exactly",
        "no difference",
        f"{number(float(worst))} in exact arithmetic",
        finding(worst == 0),
        f"{rows} rows of {keys} integer scores in blocks of {block}, in rationals with 2^x for "
        "e^x: the recurrence uses e^(x+y) = e^x e^y alone",
    )


def ordinary_error(online: Online = online, claimed: float = 1e-16) -> Claim:
    """The error in float64 on 1,000 keys, scores of size 1."""
    s, v = scores_and_values(ROWS, KEYS, DIM, seed=3)
    errors = np.abs(online(s, v).output() - direct(s, v)).max(axis=1)
    typical, worst = float(np.median(errors)), float(errors.max())
    all_rows, most_rows = (same_magnitude(error, claimed) for error in (worst, typical))
    return Claim(
        "Exactness",
        f"the largest error on {KEYS:,} keys at ordinary scores",
        number(claimed),
        f"{number(typical)} in the median query, {number(worst)} in the worst of {ROWS}",
        finding(all_rows, most_rows),
        f"float64, head size {DIM}, blocks of 128, against a direct softmax; holds where the "
        "nearest power of ten is the same",
        "a typical query is meant",
    )


def large_scores_error(online: Online = online) -> Claim:
    """The error at scores of 1e4: none where one key has all the weight."""
    s, v = _large()
    errors = np.abs(online(s, v).output() - direct(s, v)).max(axis=1)
    second, first = np.sort(s, axis=1)[:, -2:].T
    alone = np.asarray(first - second > _VANISHES)
    exact = np.asarray(errors == 0)
    return Claim(
        "Exactness",
        f"the error at scores of magnitude {LARGE:,.0f}",
        "0",
        f"0 in {exact.sum():,} of {ROWS:,} rows, at most {number(float(errors.max()))}; "
        f"0 in {(exact & alone).sum():,} of the {alone.sum():,} that the condition picks",
        finding(bool(exact.all()), bool(alone.any() and exact[alone].all())),
        f"{ROWS} rows of {KEYS:,} keys, the largest |score| {LARGE:,.0f}, float64",
        f"the largest score leads by {_VANISHES:.0f}, where exp is 0",
    )


def unshifted_is_nan(unshifted: Callable[[Array, Array], Numbers] = unshifted) -> Claim:
    """Without the maximum subtracted, exp overflows."""
    s, v = _large()
    bad = np.asarray(np.isnan(unshifted(s, v)).all(axis=1))
    threshold = math.log(FORMATS["float64"].max_finite)
    above = np.asarray(s.max(axis=1) > threshold)
    return Claim(
        "Exactness",
        f"softmax without the maximum subtracted at scores of {LARGE:,.0f}",
        "NaN",
        f"NaN in {bad.sum():,} of {ROWS:,} rows",
        finding(bool(bad.all()), bool(bad[above].all() and above.any())),
        "the same rows, exp(s) / sum exp(s) in float64",
        f"a score is above {threshold:.0f}",
    )


def float16_overflow(claimed: str = "11.09", fmt: str = "float16") -> Claim:
    """Where exp leaves float16."""
    form = FORMATS[fmt]
    # What is half a unit above the largest number rounds to infinity.
    edge = math.log(form.max_finite + form.ulp(form.max_finite).item() / 2)
    x = np.arange(0, 128, 2.0**-7)
    x = x[form.round(x) == x]
    finite = np.isfinite(form.round(np.exp(x)))
    last, first = x[finite].max(), x[~finite].min()
    return Claim(
        "Exactness",
        f"e^x overflows {fmt} for x beyond",
        claimed,
        f"{edge:.4f}: finite at {last:.4f}, infinite at {first:.4f}, its neighbour",
        finding(same_digits(edge, claimed) and last <= float(claimed) <= first),
        "the logarithm of where rounding gives infinity; exp of the format's numbers in steps of "
        "2^-7",
    )


def splits_merge(merge: Merge = merge) -> Claim:
    """Triples of disjoint keys merge to that of the whole: any split, any order."""
    s, v = scores_and_values(64, KEYS, DIM, seed=4)
    exact, worst, most = direct(s, v), 0.0, 32
    for splits in range(1, most + 1):
        edges = np.linspace(0, KEYS, splits + 1).astype(int)
        parts = [online(s[:, a:b], v[a:b]) for a, b in pairwise(edges)]
        parts.insert(splits // 2, start(s, v))  # a split without keys
        for order in (parts, parts[::-1], parts[::2] + parts[1::2]):
            whole = start(s, v)
            for part in order:
                whole = merge(whole, part, np.exp)
            worst = max(worst, _largest(whole.output() - exact))
    claimed = KEYS * FORMATS["float64"].unit_roundoff * float(np.abs(v).max())
    return Claim(
        "Exactness",
        "splits of the keys merge by the same rule",
        f"rounding alone: below {number(claimed)}",
        number(worst),
        finding(worst < claimed),
        f"one rounding of the largest |v| for each key; 1 to {most} splits of {KEYS:,} keys and "
        "one that is empty, in 3 orders, float64",
    )


def empty_splits(merge: Merge = merge) -> Claim:
    """Two splits without keys: the rule as it is written computes -inf - -inf."""
    s, v = scores_and_values(2, 8, 4, seed=5)
    nothing = start(s, v)
    with np.errstate(invalid="ignore"):
        literal = np.exp(nothing.m - np.maximum(nothing.m, nothing.m))
    both = merge(nothing, nothing, np.exp)
    kept = all(np.array_equal(got, want) for got, want in zip(both, nothing, strict=True))
    return Claim(
        "Exactness",
        "the merge takes splits that see no key",
        "the rule as written",
        f"its factor is {literal[0, 0]}; guarded, (-inf, 0, 0) "
        + ("comes out" if kept else "is lost"),
        finding(kept and not np.isnan(literal).any(), kept),
        "two empty states merged",
        "the factor of a maximum of -inf is set to 0",
    )


def _large() -> tuple[Array, Array]:
    s, v = scores_and_values(ROWS, KEYS, DIM, seed=6)
    return s * (LARGE / np.abs(s).max()), v


def _largest(x: Numbers) -> float:
    """The largest magnitude; a NaN counts as infinite."""
    return float(np.nan_to_num(np.abs(x), nan=math.inf).max())


def _integers(x: Array) -> Numbers:
    return np.asarray(np.vectorize(lambda t: Fraction(round(t)), otypes=[object])(x))


def _power_of_two(x: Numbers) -> Numbers:
    def power(t: Fraction | float) -> Fraction:
        return Fraction(0) if t == -math.inf else Fraction(2) ** int(t)

    return np.asarray(np.vectorize(power, otypes=[object])(x))
