r"""Pairs: numbers of about 106 bits, as sums of two float64, vectorised, with proven errors.

A number is an unevaluated sum x = x_h + x_l of two float64 with x_h = RN(x). Notation:
u = 2^-53, U = u^2 = 2^-106, eta = 2^-1074. Terms of the order u U are dropped below: whoever
states an error at the end covers them.

**Building blocks.** 2Sum (Knuth) is exact barring overflow. The product of Dekker (1971),
with Veltkamp's splitting, is exact within 5 eta for factors below 2^995 (Ogita, Rump and
Oishi 2005): a partial product that underflows is off by eta / 2, and the sums stay exact.
The rest follows from counting the roundings that are left. (Joldes, Muller and Popescu,
*Tight and rigorous error bounds for basic building blocks of double-word arithmetic*, ACM
TOMS 44 (2017), prove sharper relative bounds for costlier sums; a bound that is relative to
|x| + |y|, as here, is all that a dot product can use.)

    x + y    (s, e) = 2Sum(x_h, y_h); 2Sum(s, RN(e + RN(x_l + y_l)))    3 U (|x| + |y|)
             two roundings, of at most u (|x| + |y|) and 2 u (|x| + |y|)
    x + y_h  (s, e) = 2Sum(x_h, y); 2Sum(s, RN(e + x_l))                U (2 |x| + |y|)
    x y      (c, e) = 2Prod(x_h, y_h); c + RN(e + RN(x_h y_l + x_l y_h))    8 U |x y| + 7 eta
             x_l y_l left out: 1; two products: 1 + 1; two sums: 2 + 3
    x y_h    (c, e) = 2Prod(x_h, y); c + RN(e + RN(x_l y))              3 U |x y| + 6 eta
    x / y    t = RN(x_h / y_h); t + RN((x - t y) / y_h)     13 U |x / y| + 10 eta for y >= 1/2
             x_h - 2Prod(t, y_h) is exact, and at most u |x|; the other three roundings of
             the residual are of u, 2 u and 3 u, so 6 U; it is at most 3 u |x|, and dividing
             by y_h instead of y and rounding cost 2 u of that

A sum of n terms by halving has depth L_n = ceil(log2 n), so that its error is at most
3 U L_n sum |terms|.

**exp**, x in [-746, 1]: x = (32 k + j) log(2)/32 + r with |r| <= 0.0109. log(2)/32 is held in
three parts, the first two of 37 bits, so that their multiples are exact; r is off by 0.1 U.
exp(r) - 1 is Taylor's series: from r^8/8! on to r^12/12! in float64 (error 2^-116, and
2^-117 for what is cut off), the rest by Horner in double-double, where every error but that
of the last sum, 0.04 U, is multiplied by r^2 / 2. Times 2^(j/32), a table with relative
error U: 0.1 U for the product and 3.1 U for the sum. With 2^k exact, in all

    |exp_dd(x) - exp(x)| <= 5 U exp(x) + eta        (eta: both parts may become subnormal).

**log**, y_0 any float64 near log(l): log l = y_0 + log(1 + z), z = l exp(-y_0) - 1, and
|z| <= 2^-40 is checked, so nothing is assumed of np.log. z is off by (5 + 8) U; the series
z - z^2 / 2 is cut at |z|^3 / 3 <= 2^-121; the sum with y_0 costs U |y_0|:
14 U + U |log l| in all.

**tanh**, y >= 0: (1 - E) / (1 + E) with E = exp(-2 y), of which 5 U is worth 2.5 U of tanh;
the difference is off by 3 U (1 + E), the sum by as much, the quotient by 13 U: 6 U + 16 U tanh y
and 12 eta in all. Beyond y = 372.9 it is 1 to within eta. For a score, y = |t| / c by the inverse
of c, to U, and one product: 9 U |y| + 7 eta, worth 9 U tanh y; the product with c costs 3 U:

    c tanh(t / c) is off by 34 U c + (20 c + 6) eta besides t's own error, which does not grow.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array, Bools

Pair = tuple[Array, Array]

U = 2.0**-106
ETA = 2.0**-1074
EXP_ERROR = 5 * U
"""Relative error of `dd_exp` on [-746, 1]; besides it, ETA where the result is subnormal."""

_FAR = 372.9


# -- building blocks: exact sums and products, and what follows from them -----------------


def two_sum(a: Array, b: Array) -> Pair:
    """s = RN(a + b) and the exact a + b - s (Knuth, TAOCP 2, section 4.2.2, theorem B)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: Array, b: Array) -> Pair:
    """The same where |a| >= |b| or a = 0 (Dekker 1971)."""
    s = a + b
    return s, b - (s - a)


def split(a: Array) -> Pair:
    """a as two numbers of at most 26 bits (Veltkamp); |a| <= 2^995."""
    c = 134217729.0 * a
    high = c - (c - a)
    return high, a - high


def two_prod(a: Array, b: Array, a_split: Pair | None = None, b_split: Pair | None = None) -> Pair:
    """p = RN(a b) and a b - p, exact within 5 eta (Dekker 1971)."""
    ah, al = split(a) if a_split is None else a_split
    bh, bl = split(b) if b_split is None else b_split
    p = a * b
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def dd_add(x: Pair, y: Pair) -> Pair:
    """x + y within 3 U (|x| + |y|)."""
    s, e = two_sum(x[0], y[0])
    return two_sum(s, e + (x[1] + y[1]))


def dd_add_d(x: Pair, y: Array) -> Pair:
    """x + y, y a float64, within U (2 |x| + |y|)."""
    s, e = two_sum(x[0], y)
    return two_sum(s, e + x[1])


def dd_mul(x: Pair, y: Pair) -> Pair:
    """x y within 8 U |x y| + 7 eta."""
    c, e = two_prod(x[0], y[0])
    return fast_two_sum(c, e + (x[0] * y[1] + x[1] * y[0]))


def dd_div(x: Pair, y: Pair) -> Pair:
    """x / y within 13 U |x / y| + 10 eta, for y >= 1/2."""
    t = x[0] / y[0]
    p, e = two_prod(t, y[0])
    residual = ((x[0] - p) - e) + (x[1] - t * y[1])
    return fast_two_sum(t, residual / y[0])


def dd_sum(x: Pair) -> Pair:
    """The sum over the first axis, by halving, within 3 U L_n sum |x|. Destroys x."""
    high, low = x
    n = high.shape[0]
    while n > 1:
        half = (n + 1) // 2
        rest = n - half
        high[:rest], low[:rest] = dd_add((high[:rest], low[:rest]), (high[half:n], low[half:n]))
        n = half
    return high[0], low[0]


# -- constants, by integer arithmetic ------------------------------------------------------


def pair_of(x: Fraction) -> tuple[float, float]:
    """x as a pair, within U |x|: the nearest float64, and the one nearest to the rest."""
    high = float(x)
    return high, float(x - Fraction(high))


def inverse_sqrt(d: int) -> tuple[float, float]:
    """1 / sqrt(d) as a pair, within U / sqrt(d)."""
    return pair_of(Fraction(math.isqrt((1 << 600) // d), 1 << 300))


def _log2_over_32(bits: int = 300) -> Fraction:
    """log(2) / 32 = sum 1 / (32 k 2^k), to 2^-bits."""
    return sum((Fraction(1, 32 * k << k) for k in range(1, bits)), Fraction(0))


def _leading(x: Fraction, bits: int) -> Fraction:
    """The leading bits of a positive x < 1, cut off."""
    shift = bits - math.frexp(float(x))[1]
    return Fraction(math.floor(x * (1 << shift)), 1 << shift)


def _powers_of_two() -> tuple[Array, Array]:
    """2^(j / 32), j = 0 .. 31, as pairs: the 32nd root of 2 by five integer square roots."""
    root = 2 << 600
    for _ in range(5):
        root = math.isqrt(root << 600)
    pairs = [pair_of(Fraction(root, 1 << 600) ** j) for j in range(32)]
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])


_STEP = _log2_over_32()
_STEP_1 = _leading(_STEP, 37)
_STEP_2 = _leading(_STEP - _STEP_1, 37)
_C1, _C2, _C3 = float(_STEP_1), float(_STEP_2), float(_STEP - _STEP_1 - _STEP_2)
_PER_STEP = float(1 / _STEP)
_TABLE_HIGH, _TABLE_LOW = _powers_of_two()
_INVERSE_FACTORIAL = [pair_of(Fraction(1, math.factorial(n))) for n in range(13)]


# -- exp and log ---------------------------------------------------------------------------


def dd_exp(x: Pair) -> Pair:
    """exp(x) within 5 U exp(x) + eta, for x in [-746, 1]."""
    (high, low), k = exp_parts(x)
    return np.ldexp(high, k), np.ldexp(low, k)


def exp_parts(x: Pair) -> tuple[Pair, NDArray[np.int32]]:
    """(f, k) with f 2^k within 5 U of exp(x), and f between 0.98 and 2."""
    n = np.rint(x[0] * _PER_STEP)
    r = two_sum(x[0], n * -_C1)
    r = dd_add_d(r, n * -_C2)
    r = dd_add_d(r, x[1])
    r = dd_add_d(r, n * -_C3)
    tail = np.full_like(r[0], _INVERSE_FACTORIAL[12][0])
    for i in range(11, 7, -1):
        tail = tail * r[0] + _INVERSE_FACTORIAL[i][0]
    r_split = split(r[0])
    series: Pair = (tail, np.zeros_like(tail))
    for i in range(7, 1, -1):
        c, e = two_prod(series[0], r[0], b_split=r_split)
        product = fast_two_sum(c, e + (series[0] * r[1] + series[1] * r[0]))
        high, low = _INVERSE_FACTORIAL[i]
        s, e = two_sum(product[0], np.asarray(high))
        series = fast_two_sum(s, e + (product[1] + low))
    w = dd_add(r, dd_mul(dd_mul(r, r), series))
    whole = n.astype(np.int64)
    j, k = whole & 31, (whole >> 5).astype(np.int32)
    power: Pair = (_TABLE_HIGH[j], _TABLE_LOW[j])
    return dd_add(power, dd_mul(power, w)), k


def dd_tanh(y: Pair) -> Pair:
    """tanh(y) within 6 U + 16 U tanh(y) + 12 eta, for y in [0, 372.9]."""
    e = dd_exp((-2.0 * y[0], -2.0 * y[1]))
    one = (np.ones_like(y[0]), np.zeros_like(y[0]))
    return dd_div(dd_add(one, (-e[0], -e[1])), dd_add(one, e))


def dd_softcap(t: Pair, cap: float) -> Pair:
    """cap tanh(t / cap) within 34 U cap + (20 cap + 6) eta, for cap in [2^-960, 2^960]."""
    inverse = pair_of(1 / Fraction(cap))
    # There tanh is 1 to within eta; the quotient may overflow.
    far = np.abs(t[0]) > _FAR * cap
    sign = np.where(t[0] < 0, -1.0, 1.0)
    near = (np.where(far, 0.0, sign * t[0]), np.where(far, 0.0, sign * t[1]))
    high, low = dd_tanh(dd_mul(near, (np.asarray(inverse[0]), np.asarray(inverse[1]))))
    high, low = np.where(far, 1.0, high), np.where(far, 0.0, low)
    return dd_mul((sign * high, sign * low), (np.asarray(cap), np.asarray(0.0)))


def dd_log(x: Pair) -> tuple[Array, Array, Bools]:
    """log(x) within 14 U + U |log x|, for x in [1/2, e^700], and where that is certain."""
    y0 = np.log(x[0])
    t = dd_mul(x, dd_exp((-y0, np.zeros_like(y0))))
    z = two_sum(t[0] - 1.0, t[1])
    z = dd_add_d(z, -0.5 * z[0] * z[0])
    high, low = dd_add_d(z, y0)
    return high, low, np.abs(t[0] - 1.0) <= 2.0**-40
