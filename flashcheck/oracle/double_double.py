r"""The double-double tier: attention to about 100 bits, vectorised, with a proven radius.

A number is an unevaluated sum x = x_h + x_l of two float64 with x_h = RN(x). Notation:
u = 2^-53, U = u^2 = 2^-106, eta = 2^-1074, L_n = ceil(log2 n). Terms of the order u U are
dropped below: they, and the rounding of the radius itself (float64 sums of at most 2^28 terms, and
numpy's expm1, of which 22 correct bits are assumed), are covered by the factor 1 + 2^-20
that every radius gets at the end.

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

A sum of n terms by halving has depth L_n, so its error is at most 3 U L_n sum |terms|.

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

**Attention.** With sigma the scale (1/sqrt(D) to U), t_j = sum_d q_d k_jd, A0_j = sum_d
|q_d k_jd| and A_j = |sigma| A0_j + |b_j|, the score s_j = sigma t_j + b_j is off by

    |sigma| (3 L_D U A0_j + 5 D eta) + 9 U |sigma| A0_j + 7 eta + 3 U A_j
                                            <= (3 L_D + 12) U A_j + (5 D |sigma| + 7) eta.

ALiBi is one sum more: |alibi_j| joins A_j, and 3 U A_j the error; a softcap adds what is said
above. A sink is a key whose score has no error, only A_j = |sink|, and whose value is 0.
m is the largest computed score, a double-double number; any m leaves the result as it is.
x_j = s_j - m adds 3 U (A_j + |m|), exp adds 5 U. So the computed weight p_j is the true
exp(s_j - m) times exp(theta_j), plus at most eta, with

    |theta_j| <= delta_j = U ((3 L_D + 15) A_j + 3 |m| + 6) + (5 D |sigma| + 8) eta,
    |p_j - exp(s_j - m)| <= rho_j = p_j expm1(delta_j) + 3 eta exp(delta_j),

and x_j < -746 is flushed to p_j = 0, which the last term covers. Numerator N = sum p_j v_j
and normalizer l = sum p_j over the n keys are off by

    e_N = sum_j (rho_j + (3 L_n + 3) U p_j) |v_j| + 10 n eta,
    e_l = sum_j (rho_j + 3 L_n U p_j).

For the quotient o = N / l, from N'/l' - o = ((N' - N) - o (l' - l)) / l' and
|o| <= |o'| + error,

    out_radius = (e_N + |o| e_l) / (l - e_l) + 13 U |o| + 10 eta      while e_l <= l / 2,
    lse_radius = e_l / (l - e_l) + 14 U + 4 U |log l| + 3 U |m| + 4 eta.

So it has the form (expm1(delta) + (3 L_n + c) U) sum p |v|, with each key weighing its own
delta: a far key of huge magnitude and no weight costs nothing.

**Domain.** |q|, |k|, |sigma| <= 2^990, |v| <= 2^960, A0_j, A_j <= 2^990 over the keys that a
row sees, 2^-960 <= c <= 2^960; elsewhere, and where an element seen is not finite, the
radius is infinite. Float64 must round to nearest and keep subnormals: see `selfcheck`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.value import Value

Pair = tuple[Array, Array]

U = 2.0**-106
ETA = 2.0**-1074
EXP_ERROR = 5 * U
"""Relative error of `dd_exp` on [-746, 1]; besides it, ETA where the result is subnormal."""

_SLACK = 1.0 + 2.0**-20
_LIMIT = 2.0**990
_LIMIT_V = 2.0**960
_LOWEST = -746.0
_FAR = 372.9
_BLOCK = 1 << 14
"""Elements of a temporary array: several of them should fit in the cache."""


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


# -- attention -----------------------------------------------------------------------------


def attention(inputs: Inputs) -> Value:
    """Attention of every row, as pairs, with the radius of the module's docstring."""
    b, hq, hkv, lq, lk, d, dv = inputs.shape
    groups, rows = b * hkv, (hq // hkv) * lq
    out, out_low, out_radius = (np.zeros((groups, rows, dv)) for _ in range(3))
    lse, lse_low, lse_radius = np.full((groups, rows), -np.inf), *np.zeros((2, groups, rows))
    by_head = (groups, rows, lk)
    sinks = None
    if inputs.sinks is not None:
        sinks = np.broadcast_to(inputs.sinks[:, None], (b, hq, lq)).reshape(groups, rows)
        lse = sinks.copy()
    if lk:
        scale = inverse_sqrt(d) if inputs.scale is None else (float(inputs.scale), 0.0)
        q = inputs.q.reshape(groups, rows, d)
        k = inputs.k.reshape(groups, lk, d)
        v = inputs.v.reshape(groups, lk, dv)
        visible = inputs.visible.reshape(by_head)
        added = [
            np.broadcast_to(term, (b, hq, lq, lk)).reshape(by_head)
            for term in (inputs.alibi, inputs.bias)
            if term is not None
        ]
        with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
            for g, r in _chunks(groups, rows, lk):
                (
                    (out[g, r], out_low[g, r], out_radius[g, r]),
                    (lse[g, r], lse_low[g, r], lse_radius[g, r]),
                ) = _rows(
                    q[g, r], k[g], v[g], scale, inputs.softcap, visible[g, r],
                    [term[g, r] for term in added], None if sinks is None else sinks[g, r],
                )  # fmt: skip
    heads, full = (b, hq, lq), (b, hq, lq, dv)
    return Value(
        out.reshape(full),
        out_low.reshape(full),
        lse.reshape(heads),
        lse_low.reshape(heads),
        out_radius.reshape(full),
        lse_radius.reshape(heads),
        "double-double",
    )


def _chunks(groups: int, rows: int, lk: int) -> Iterator[tuple[slice, slice]]:
    """Whole groups while they are small, else parts of the rows of one."""
    step = max(1, _BLOCK // (rows * lk))
    part = rows if rows * lk <= _BLOCK else max(1, _BLOCK // lk)
    for g in range(0, groups, step):
        for r in range(0, rows, part):
            yield slice(g, g + step), slice(r, r + part)


def _rows(
    q: Array,
    k: Array,
    v: Array,
    scale: tuple[float, float],
    cap: float,
    visible: Bools,
    added: list[Array],
    sinks: Array | None,
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    """(out, low, radius) and (lse, low, radius) of rows that share keys group by group.

    q [C, R, D], k [C, Lk, D], v [C, Lk, Dv], visible and each of what is added to the scores
    [C, R, Lk], sinks [C, R].
    """
    d, lk = q.shape[2], k.shape[1]
    q, q_bad = _tame(q, _LIMIT)
    k, k_bad = _tame(k, _LIMIT)
    v, v_bad = _tame(v, _LIMIT_V)
    sigma = abs(scale[0])

    # A_j, evaluated in float64, and which rows leave the domain.
    a0 = np.abs(q) @ np.abs(k).swapaxes(1, 2)
    size = sigma * a0
    for term in added:
        size = size + np.abs(term)
    outside = ~((a0 <= _LIMIT) & (size <= _LIMIT)) | (k_bad | v_bad)[:, None, :]
    bad = (visible & outside).any(-1) | q_bad | (not sigma <= _LIMIT)
    bad |= cap != 0 and not 1 / _LIMIT_V <= cap <= _LIMIT_V
    empty = ~visible.any(-1)

    s = _scores(q, k, scale)
    if cap:
        s = dd_softcap(s, cap)
    for term in added:
        s = dd_add_d(s, term)
    if sinks is not None:
        s, size, visible, v = _with_sink(sinks, s, size, visible, v)
        lk += 1
    m_high = np.max(np.where(visible, s[0], -np.inf), axis=-1, keepdims=True)
    m_low = np.max(np.where(visible & (s[0] == m_high), s[1], -np.inf), axis=-1, keepdims=True)
    lost = ~(np.isfinite(m_high) & np.isfinite(m_low))
    m_high[lost], m_low[lost] = 0.0, 0.0
    x_high, x_low = dd_add(s, (-m_high, -m_low))
    bad |= (visible & ~(x_high <= 1.0)).any(-1)
    weighs = visible & (x_high >= _LOWEST) & (x_high <= 1.0)
    p = dd_exp((np.where(weighs, x_high, 0.0), np.where(weighs, x_low, 0.0)))
    p = (np.where(weighs, p[0], 0.0), np.where(weighs, p[1], 0.0))

    sums = max(0, len(added) - 1)
    delta = U * ((3 * (_depth(d) + sums) + 15) * size + 3 * np.abs(m_high) + 6 + 34 * cap)
    delta = (delta + (5 * d * sigma + 14 + 20 * cap) * ETA) * _SLACK
    rho = np.where(visible, p[0] * np.expm1(delta) + 3 * ETA * np.exp(delta), 0.0)

    columns = (np.array(np.moveaxis(p[0], 2, 0)), np.array(np.moveaxis(p[1], 2, 0)))
    numerator = _weighted(columns, v)
    normalizer = dd_sum(columns)
    n = 3 * _depth(lk)
    e_n = (rho + (n + 3) * U * p[0]) @ np.abs(v) + 10 * lk * ETA
    e_l = rho.sum(-1) + n * U * p[0].sum(-1) + lk * ETA
    certain = e_l <= 0.5 * normalizer[0]
    rest = normalizer[0] - e_l

    out = dd_div(numerator, (normalizer[0][..., None], normalizer[1][..., None]))
    spread = (e_n + np.abs(out[0]) * e_l[..., None]) / rest[..., None]
    out_radius = (spread + 13 * U * np.abs(out[0])) * _SLACK + 12 * ETA
    log_high, log_low, log_certain = dd_log(normalizer)
    lse = dd_add((m_high[..., 0], m_low[..., 0]), (log_high, log_low))
    lse_radius = e_l / rest + U * (14 + 4 * np.abs(log_high) + 3 * np.abs(m_high[..., 0]))
    lse_radius = lse_radius * _SLACK + 6 * ETA

    out_radius[bad | ~certain | ~(out_radius >= 0).all(-1)] = np.inf
    lse_radius[bad | ~certain | ~log_certain | ~(lse_radius >= 0)] = np.inf
    for array in (*out, out_radius, lse[1], lse_radius):
        array[empty] = 0.0
    lse[0][empty] = -np.inf if sinks is None else sinks[empty]
    return (*out, out_radius), (*lse, lse_radius)


def _with_sink(
    sinks: Array, s: Pair, size: Array, visible: Bools, v: Array
) -> tuple[Pair, Array, Bools, Array]:
    """Scores, their A_j, who sees whom, and the values, with one key more: the sink's."""
    z = sinks[..., None]
    scores = np.append(s[0], z, -1), np.append(s[1], np.zeros_like(z), -1)
    seen = np.append(visible, np.ones(z.shape, bool), -1)
    values = np.append(v, np.zeros_like(v[:, :1]), 1)
    return scores, np.append(size, np.abs(z), -1), seen, values


def _tame(x: Array, limit: float) -> tuple[Array, Bools]:
    """x with 0 where it leaves the domain, and which rows (last axis) do."""
    inside = np.asarray(np.abs(x) <= limit)
    tame: Array = x if inside.all() else np.where(inside, x, 0.0)
    return tame, np.logical_not(inside.all(-1))


def _depth(n: int) -> int:
    """L_n = ceil(log2 n)."""
    return (n - 1).bit_length()


def _scores(q: Array, k: Array, scale: tuple[float, float]) -> Pair:
    """scale * q.k [C, R, Lk], the sums over the first axis of [D, C, R, keys]."""
    c, r, d = q.shape
    lk = k.shape[1]
    q_first = np.ascontiguousarray(np.moveaxis(q, 2, 0))[..., None]
    k_first = np.ascontiguousarray(np.moveaxis(k, 2, 0))[:, :, None, :]
    q_split, k_split = split(q_first), split(k_first)
    # Factors of at most 26 bits: half precision and float32. Their products are exact.
    exact = not (q_split[1].any() or k_split[1].any())
    high, low = np.empty((c, r, lk)), np.empty((c, r, lk))
    step = max(1, _BLOCK // (c * r * d))
    for start in range(0, lk, step):
        at = slice(start, start + step)
        keys = k_first[..., at]
        if exact:
            product = q_first * keys
            terms = product, np.zeros_like(product)
        else:
            terms = two_prod(q_first, keys, q_split, (k_split[0][..., at], k_split[1][..., at]))
        high[..., at], low[..., at] = dd_sum(terms)
    if scale == (1.0, 0.0):
        return high, low
    return dd_mul((high, low), (np.asarray(scale[0]), np.asarray(scale[1])))


def _weighted(p: Pair, v: Array) -> Pair:
    """sum_j p_j v_j [C, R, Dv]; p [Lk, C, R], v [C, Lk, Dv]."""
    lk, c, r = p[0].shape
    dv = v.shape[2]
    p_high, p_low = p[0][..., None], p[1][..., None]
    v_first = np.moveaxis(v, 1, 0)[:, :, None, :]
    p_split, v_split = split(p_high), split(np.ascontiguousarray(v_first))
    high, low = np.empty((c, r, dv)), np.empty((c, r, dv))
    step = max(1, _BLOCK // (lk * c * r))
    for start in range(0, dv, step):
        at = slice(start, start + step)
        columns = v_first[..., at]
        product, e = two_prod(p_high, columns, p_split, (v_split[0][..., at], v_split[1][..., at]))
        terms = fast_two_sum(product, e + p_low * columns)
        high[..., at], low[..., at] = dd_sum(terms)
    return high, low
