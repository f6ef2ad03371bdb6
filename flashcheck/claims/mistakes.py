"""Mistakes that a derivation warns of: when each of them shows, and when it does not."""

from __future__ import annotations

import math

import numpy as np

from flashcheck.claims.claim import Claim, finding
from flashcheck.claims.draws import scores_and_values
from flashcheck.claims.recurrence import Exp, Numbers, State, Step, direct, online
from flashcheck.reporting.wording import number

KEYS = 256
ROWS = 8
BLOCK = 32


def acc_left(state: State, s: Numbers, v: Numbers, exp: Exp = np.exp) -> State:
    """A step that rescales l, and acc not."""
    m_new = np.maximum(state.m, s.max(axis=1, keepdims=True))
    p = exp(s - m_new)
    l = state.l * exp(state.m - m_new) + p.sum(axis=1, keepdims=True)
    return State(m_new, l, state.a + p @ v)


def zero_start(first: float = 0.0, dtype: str = "float32") -> Claim:
    """m = 0 before any key: rows whose scores are all negative, at falling depths."""
    s, v = scores_and_values(ROWS, KEYS, 16, seed=7)
    s = s - s.max(axis=1, keepdims=True)
    depths = np.arange(1, 900)
    errors = np.array([_error(s - depth, v, first, dtype) for depth in depths])
    right = max(_error(s - depth, v, -math.inf, dtype) for depth in depths[::50])
    lost = np.isinf(errors)
    wrong = (errors > 10 * right) & ~lost
    broken = wrong | lost
    silent = _depths(depths[wrong])
    safe, first_wrong = depths[~broken].max(initial=0), depths[broken].min(initial=depths[-1])
    return Claim(
        "Mistakes",
        f"m starts at 0, not -inf: rows of negative scores break silently ({dtype})",
        "wrong on all-negative rows",
        f"row maximum down to -{safe}: right; {silent or 'nowhere'}: wrong by up "
        f"to {number(float(errors[wrong].max(initial=0)))}; "
        + (f"from -{depths[lost].min()} on: NaN, 0 / 0" if lost.any() else "never NaN"),
        finding(bool(wrong.all()), bool(wrong.any())),
        f"{ROWS} rows of {KEYS} keys shifted to each maximum from -1 to -{depths[-1]}, against "
        f"float64; wrong is 10 times the error of a start at -inf",
        f"the row maximum is below -{first_wrong - 1}: above it m = 0 is a shift like any other, "
        "and far below the result is NaN unless l = 0 is caught",
    )


def acc_not_rescaled(step: Step = acc_left, late: float = 4.0) -> Claim:
    """l rescaled, acc not: the same keys with the maximum in the first block and in the last."""
    s, v = scores_and_values(ROWS, KEYS, 16, seed=8)
    at = np.arange(ROWS)
    s[at, 0] = s.max(axis=1) + late  # the first key leads
    orders = {"first": slice(None), "last": slice(None, None, -1)}
    exact = direct(s, v)
    error = {
        name: float(np.abs(online(s[:, o], v[o], block=BLOCK, step=step).output() - exact).max())
        for name, o in orders.items()
    }
    right = max(
        float(np.abs(online(s[:, o], v[o], block=BLOCK).output() - exact).max())
        for o in orders.values()
    )
    seen = error["last"] > 10 * right
    hidden = error["first"] <= 10 * right
    return Claim(
        "Mistakes",
        "l is rescaled and acc not: wrong by what depends on block order, only where maxima come "
        "late",
        "right in one order, wrong in another",
        f"maximum in the first block: error {number(error['first'])}; the same keys reversed: "
        f"{number(error['last'])}; rescaled: {number(right)}",
        finding(seen and hidden),
        f"{ROWS} rows of {KEYS} keys in blocks of {BLOCK}, one key ahead by {late:g}, float64",
    )


def _error(s: Numbers, v: Numbers, first: float, dtype: str) -> float:
    """The largest error of a start at `first` in a format; infinite for NaN."""
    # The scores as the format holds them: their rounding is not the mistake's.
    s, v = s.astype(dtype), v.astype(dtype)
    with np.errstate(invalid="ignore", divide="ignore"):
        got = online(s, v, block=BLOCK, first=first).output()
    error = np.abs(got - direct(s.astype(np.float64), v.astype(np.float64))).max()
    return math.inf if np.isnan(error) else float(error)


def _depths(found: Numbers) -> str:
    return f"-{found[0]} to -{found[-1]}" if len(found) else ""
