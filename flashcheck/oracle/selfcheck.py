"""What the oracle's fast tiers assume of float64 and of numpy, verified at start-up.

The float64 tier assumes that np.exp, np.log and np.tanh are within 2 units in the last place
(so 4 unit roundoffs), by whichever code path numpy chose for this processor. No numpy promises
that: it is measured here, on a few hundred fixed points, against the double-double exp, log
and tanh, whose error is proven (`pairs`) and checked against mpmath at some points.
The proofs of both tiers assume in turn that float64 arithmetic rounds to nearest and keeps
subnormal numbers, which another library in the process can switch off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import mpmath
import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array
from flashcheck.oracle.pairs import (
    EXP_ERROR,
    Pair,
    U,
    dd_log,
    dd_tanh,
    exp_parts,
    two_prod,
    two_sum,
)

ALLOWED_ULP = 2.0
"""Error of np.exp on [-745, 0.5], of np.log on [1, 2^20] and of np.tanh that the float64 tier
allows."""

_ETA = 2.0**-1074


@dataclass(frozen=True, slots=True)
class LibraryErrors:
    """The worst errors found, in units in the last place of the exact result.

    A unit is at least 2^-1074: where exp is subnormal its error is so many of these.
    `failures` says in words what was found wrong; it is empty when all is well.
    """

    exp_ulp: float
    log_ulp: float
    tanh_ulp: float
    failures: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.failures


def numpy_exp_error() -> LibraryErrors:
    """Measure np.exp, np.log and np.tanh on fixed points spread over the ranges in use.

    Contiguous arrays, strided ones and short ones are tried: each may take another path.
    """
    found = library_errors(lambda name: getattr(np, name), "np")
    faults = tuple(arithmetic_faults() + _reference_faults())
    return replace(found, failures=faults + found.failures)


def library_errors(
    named: Callable[[str], Callable[[Array], Array]], library: str, samples: int = 512
) -> LibraryErrors:
    """Measure the exp, log and tanh of a library, `named` being how to get at them."""
    exp, log, tanh = (named(name) for name in ("exp", "log", "tanh"))
    failures = []
    with np.errstate(all="ignore"):
        x = exp_points(samples)
        (high, low), k = exp_parts((x, np.zeros_like(x)))
        exp_ulp = max(_ulps(np.ldexp(y, -k), (high, low), k) for y in _paths(exp, x))
        x = log_points(samples)
        log_high, log_low, certain = dd_log((x, np.zeros_like(x)))
        zero = np.zeros(x.shape, np.int32)
        log_ulp = max(_ulps(y, (log_high, log_low), zero) for y in _paths(log, x))
        log_ulp = max(log_ulp, _log_near_one_ulp(log))
        x = tanh_points(samples)
        tanh_ulp = max(_ulps(y, _tanh(x), zero[:1]) for y in _paths(tanh, x))
    for name, ulp in (("exp", exp_ulp), ("log", log_ulp), ("tanh", tanh_ulp)):
        if not ulp <= ALLOWED_ULP:
            allowed = f"{ALLOWED_ULP:g} are allowed"
            failures.append(f"{library}.{name} is off by {ulp:.3g} ulp; {allowed}")
    if not certain.all():
        failures.append(f"{library}.log is too far off for the double-double logarithm")
    return LibraryErrors(exp_ulp, log_ulp, tanh_ulp, tuple(failures))


def arithmetic_faults() -> list[str]:
    """What is wrong with float64 arithmetic on arrays; empty when it is IEEE 754's."""
    faults = []
    # Bit patterns: where subnormals are flushed, comparing floats takes them for zero too.
    tripled = (np.full(16, _ETA) * 3.0).view(np.uint64)
    halved = (np.full(16, 2.0**-1022) * 0.5).view(np.uint64)
    if not ((tripled == 3).all() and (halved == 1 << 51).all()):
        faults.append("subnormal float64 numbers are flushed to zero")
    one, half_ulp = np.full(16, 1.0), np.full(16, 2.0**-53)
    above = half_ulp * 1.5
    if not (
        (one + half_ulp == 1.0).all()
        and (one + above == 1.0 + 2.0**-52).all()
        and (-one - half_ulp == -1.0).all()
        and (-one - above == -1.0 - 2.0**-52).all()
        and (one + 3 * half_ulp == 1.0 + 2.0**-51).all()
    ):
        faults.append("float64 addition does not round to nearest, ties to even")
    step = np.arange(1.0, 33.0)
    a, b = np.sqrt(step) * 1e5, -np.cbrt(step) / 3
    for name, (s, e), exact in (
        ("sum", two_sum(a, b), [Fraction(x) + Fraction(y) for x, y in _zip(a, b)]),
        ("product", two_prod(a, b), [Fraction(x) * Fraction(y) for x, y in _zip(a, b)]),
    ):
        if [Fraction(x) + Fraction(y) for x, y in _zip(s, e)] != exact:
            faults.append(f"the error-free {name} of two float64 numbers is not exact")
    return faults


def exp_points(samples: int) -> Array:
    """Points of [-745, 0.5]: spread evenly, near 0, and around the halves of log(2)."""
    n = max(samples // 4, 8)
    even = -745.0 + 745.5 * (np.arange(2 * n) + 0.5) / (2 * n)
    near_zero = -np.exp2(-np.linspace(0.0, 60.0, n))
    multiple = -np.rint(np.linspace(0.0, 2148.0, n)) * (0.5 * math.log(2))
    ends = np.array([-745.0, -744.4, -708.5, -708.3, -0.0, 0.0, 1e-300, 0.25, 0.5])
    nudged = np.nextafter(multiple, np.where(np.arange(n) % 2, 1.0, -1000.0))
    return np.concatenate([even, near_zero, np.clip(nudged, -745.0, 0.5), ends])


def log_points(samples: int) -> Array:
    """Points of [1 + 2^-10, 2^20]: spread evenly in the logarithm, and small whole numbers."""
    n = max(samples // 2, 8)
    spread = np.exp2(2.0**-9 + (20.0 - 2.0**-9) * np.arange(n) / n)
    return np.concatenate([spread, np.arange(2.0, 2.0 + n), [2.0**20]])


def tanh_points(samples: int) -> Array:
    """Points of either sign: spread evenly up to 22, where tanh rounds to 1, near 0, and far."""
    n = max(samples // 4, 8)
    even = 22.0 * (np.arange(2 * n) + 0.5) / (2 * n)
    far = np.array([0.0, 0.55, 0.625, 1.0, 18.7, 19.1, 22.0, 100.0, 300.0])
    points = np.concatenate([even, np.exp2(-np.linspace(0.0, 300.0, n)), far])
    return points * np.where(np.arange(points.size) % 2, -1.0, 1.0)


def _tanh(x: Array) -> Pair:
    """tanh(x) to less than 2^-66 of itself: below 2^-26, x - x^3 / 3 is as close."""
    size, sign = np.abs(x), np.sign(x)
    series = size < 2.0**-26
    high, low = dd_tanh((np.where(series, 1.0, size), np.zeros_like(x)))
    high, low = np.where(series, size, high), np.where(series, -(size**3) / 3, low)
    return sign * high, sign * low


def _paths(function: Callable[[Array], Array], x: Array) -> list[Array]:
    """function(x) by contiguous, strided, reversed and short arrays."""
    strided = np.empty((x.size, 3))
    strided[:, 1] = x
    parts: list[Array] = []
    start = 0
    while start < x.size:
        size = 1 + len(parts) % 9
        parts.append(function(x[start : start + size]))
        start += size
    return [function(x), function(strided[:, 1]), function(x[::-1])[::-1], np.concatenate(parts)]


def _ulps(y: Array, exact: Pair, k: NDArray[np.int32]) -> float:
    """The largest |y - exact| in units in the last place, both scaled by 2^-k."""
    unit = np.maximum(np.spacing(np.abs(exact[0])), np.ldexp(_ETA, -k))
    return _largest(np.abs((y - exact[0]) - exact[1]) / unit)


def _largest(x: Array) -> float:
    """The maximum; infinite where something is not a number."""
    return float(np.max(np.where(np.isnan(x), np.inf, x)))


def _reference_faults() -> list[str]:
    """The double-double exp, log and tanh against mpmath at a few points."""
    mp = mpmath.mp.clone()
    mp.dps = 40
    faults = []
    x = np.array([-744.9, -700.25, -333.3, -88.7, -17.0, -2.5, -0.7, -0.34657, -1e-9, 0.5])
    x_low = np.spacing(x) * 0.3
    (high, low), k = exp_parts((x, x_low))
    for i in range(x.size):
        exact = mp.exp(mp.mpf(float(x[i])) + mp.mpf(float(x_low[i])))
        value = mp.ldexp(mp.mpf(float(high[i])) + mp.mpf(float(low[i])), int(k[i]))
        if not abs(value - exact) <= EXP_ERROR * exact:
            faults.append(f"the double-double exp is wrong at {x[i]!r}")
    x = np.array([1.0, 1.0 + 2.0**-30, 1.7, 10.0, 1234.5, 2.0**20])
    high, low, _ = dd_log((x, np.zeros_like(x)))
    for i in range(x.size):
        exact = mp.log(mp.mpf(float(x[i])))
        value = mp.mpf(float(high[i])) + mp.mpf(float(low[i]))
        if not abs(value - exact) <= U * (14 + exact):
            faults.append(f"the double-double log is wrong at {x[i]!r}")
    x = np.array([0.0, 1e-9, 0.01, 0.5, 1.0, 7.5, 40.0, 372.0])
    high, low = dd_tanh((x, np.zeros_like(x)))
    for i in range(x.size):
        value = mp.mpf(float(high[i])) + mp.mpf(float(low[i]))
        if not abs(value - mp.tanh(mp.mpf(float(x[i])))) <= 22 * U:
            faults.append(f"the double-double tanh is wrong at {x[i]!r}")
    return faults


def _log_near_one_ulp(log: Callable[[Array], Array]) -> float:
    """The largest error of log next to 1, where log is tiny, against mpmath."""
    mp = mpmath.mp.clone()
    mp.dps = 50
    x = 1.0 + np.exp2(-np.arange(10.0, 53.0, 3.0)) * 1.25
    worst = math.inf if log(np.ones(16)).any() else 0.0
    for a, y in _zip(x, log(x)):
        exact = mp.log(mp.mpf(a))
        worst = max(worst, float(abs(mp.mpf(y) - exact)) / math.ulp(float(exact)))
    return worst


def _zip(a: Array, b: Array) -> list[tuple[float, float]]:
    return list(zip(a.tolist(), b.tolist(), strict=True))
