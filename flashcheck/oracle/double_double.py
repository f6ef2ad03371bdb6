r"""The double-double tier: attention to about 100 bits, vectorised, with a proven radius.

Arithmetic and notation are those of `pairs`; L_n = ceil(log2 n). The terms that are dropped
there and here, and the rounding of the radius itself (float64 sums of at most 2^28 terms, and
numpy's expm1, of which 22 correct bits are assumed), are covered by the factor 1 + 2^-20
that every radius gets at the end.

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

float8's factors are in q, k and v, exactly: 28 bits fit float64, and `two_prod` takes any.

**Domain.** |q|, |k|, |sigma| <= 2^990, |v| <= 2^960, A0_j, A_j <= 2^990 over the keys that a
row sees, 2^-960 <= c <= 2^960; elsewhere, and where an element seen is not finite, the
radius is infinite. Float64 must round to nearest and keep subnormals: see `selfcheck`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.pairs import (
    ETA,
    Pair,
    U,
    dd_add,
    dd_add_d,
    dd_div,
    dd_exp,
    dd_log,
    dd_mul,
    dd_softcap,
    dd_sum,
    fast_two_sum,
    inverse_sqrt,
    split,
    two_prod,
)
from flashcheck.oracle.value import Value

_SLACK = 1.0 + 2.0**-20
_LIMIT = 2.0**990
_LIMIT_V = 2.0**960
_LOWEST = -746.0
_BLOCK = 1 << 14
"""Elements of a temporary array: several of them should fit in the cache."""


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
        q = inputs.exact_q.reshape(groups, rows, d)
        k = inputs.exact_k.reshape(groups, lk, d)
        v = inputs.exact_v.reshape(groups, lk, dv)
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
