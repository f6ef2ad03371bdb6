r"""The definition of attention, index by index, in multiple precision.

For query row (b, h, i), with c = h // (Hq / Hkv) and J the keys that the row sees,

    t_j = scale * sum_d q[b, h, i, d] k[b, c, j, d],                 j in J
                                                     (times q_descale and k_descale: float8)
    s_j = cap tanh(t_j / cap) - slope_h |i + Lk - Lq - j| + bias_j   (t_j where there is no cap)
    lse = log (sum_{j in J} exp(s_j) [+ exp(sink_h)]),
    out_e = sum_{j in J} exp(s_j - lse) v[b, c, j, e]               (times v_descale: float8).

This is the last word of the oracle. It is deliberately plain and slow, and it shares no
code with a kernel or with another tier: from `Inputs` it reads the raw tensors, the options
and the mask, and it derives by itself who sees whom. A sink is computed as a key of value 0.

**Radius.** mpmath rounds +, -, *, / and sqrt to nearest, with relative error at most
w = 2^-prec and no underflow or overflow; of its exp, log and tanh only an error of 16 w is
assumed (they are documented as accurate to about one). Let n = |J|, one more with a sink, and
A >= |scale| sum_d |q_d k_jd| + |slope (i + Lk - Lq - j)| + |bias_j| for every j in J, and
A >= |sink|. A score carries at most d + 5 roundings of quantities bounded by A, and two more
with the factors of q and k; A and |v_j| stand for what has its factor. A cap, whose
tanh has a slope of at most 1, adds one rounding before tanh, its 16, and one after; ALiBi two.
The distance to the row maximum is one more, of at most 2 A, so that each weight is
exp(s_j - m) e^t with

    |t| <= w ((d + 30) A + 17) <= w (d + 47) max(1, A) =: H     (Higham 2002, lemma 3.1).

Sums of n terms, the products with v, which may have a factor, and the division add at most
(2 n + 7) w, hence

    |error of out_e| <= (exp(2 H + (2 n + 7) w) - 1) sum_j p_j |v_je|,
    |error of lse|   <= H + n w + 17 w log(n) + 2 w (A + log n),

with p_j the softmax weights. Both brackets stay below w C with
C = 8 (d + 16) max(1, A) + 40 n + 64. The working precision is chosen from C, whatever the
magnitude of the scores, so that w C <= 2^-bits with bits = ceil(digits log2 10). What
remains is to round the result to a pair of float64 numbers, which costs 2^-106 of its
magnitude, or 2^-1074 below the normal range:

    out_radius = 2^(1 - bits) sum_j p_j |v_j| + 2^-106 |out| + 2^-1074,
    lse_radius = 2^(1 - bits)                 + 2^-106 |lse| + 2^-1074.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import mpmath
import numpy as np

from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.oracle.value import Value

Row = tuple[int, int, int]

_ETA = 2.0**-1074
_PAIR = 2.0**-106
_SLACK = 1.0 + 2.0**-20
"""Covers the few float64 roundings with which a radius itself is evaluated."""


def attention(inputs: Inputs, rows: Iterable[Row] | None = None, digits: int = 40) -> Value:
    """Attention of the given rows (b, h, i) of `inputs`; all of them where `rows` is None.

    The result has the full shapes, NaN in rows that were not asked for.
    """
    b, hq, lq, _ = inputs.q.shape
    dv = inputs.v.shape[3]
    wanted = np.ndindex(b, hq, lq) if rows is None else rows
    out, out_low, out_radius = (np.full((b, hq, lq, dv), np.nan) for _ in range(3))
    lse, lse_low, lse_radius = (np.full((b, hq, lq), np.nan) for _ in range(3))
    context = mpmath.mp.clone()
    for row in wanted:
        at = (int(row[0]), int(row[1]), int(row[2]))
        out[at], out_low[at], out_radius[at], (lse[at], lse_low[at], lse_radius[at]) = _row(
            context, inputs, at, digits
        )
    return Value(out, out_low, lse, lse_low, out_radius, lse_radius, "mpmath")


def sees(inputs: Inputs, row: Row, j: int) -> bool:
    """Whether query `row` sees key `j`: by is_causal, by the window and by the mask."""
    first, last, i, shift = placed(inputs, row)
    if not first <= j < last:  # a key of another sequence, or of none
        return False
    j_there = j - first
    if inputs.is_causal and j_there > i + (shift if inputs.bottom_right else 0):
        return False
    left, right = inputs.window
    own = i + shift
    if (left != -1 and j_there < own - left) or (right != -1 and j_there > own + right):
        return False
    if inputs.mask is None:
        return True
    entry = _mask_entry(inputs, row, j)
    return bool(entry) if inputs.mask.dtype == np.bool_ else float(entry) != -math.inf


def placed(inputs: Inputs, row: Row) -> tuple[int, int, int, int]:
    """Of the query's sequence: its first key, the one after its last, the query's place in it,
    and its Lk - Lq."""
    b, _, i = row
    queries, keys = inputs.q.shape[2], inputs.k.shape[2]
    if inputs.places is not None and inputs.queries is not None:
        i, queries = int(inputs.places[i]), inputs.queries
    if inputs.seqlens_k is None:
        return 0, keys, i, keys - queries
    if inputs.seqlens_q is None:
        return 0, inputs.seqlens_k[b], i, inputs.seqlens_k[b] - queries
    first = 0
    for queries, keys in zip(inputs.seqlens_q, inputs.seqlens_k, strict=True):
        if i < queries:
            break
        i, first = i - queries, first + keys
    return first, first + keys, i, keys - queries


def own_key(inputs: Inputs, row: Row) -> int:
    """The key j that stands at the query's own place, the ends of both aligned."""
    first, _, i, shift = placed(inputs, row)
    return first + i + shift


def bias(inputs: Inputs, row: Row, j: int) -> float:
    """What the mask adds to the score of a key that is seen."""
    if inputs.mask is None or inputs.mask.dtype == np.bool_:
        return 0.0
    return float(_mask_entry(inputs, row, j))


def descale(inputs: Inputs, of: str, b: int, h: int, place: int) -> float:
    """The factor of row `place` of head h of q, k or v; 1 without."""
    given = getattr(inputs, f"{of}_descale")
    if given is None:
        return 1.0
    if given.size == 1:
        return float(given.reshape(-1)[0])
    heads = getattr(inputs, of).shape[1]
    index = [
        b,
        h // (heads // given.shape[1]),
        place // inputs.descale_block[0 if of == "q" else 1],
    ]
    return float(given[tuple(0 if n == 1 else i for n, i in zip(given.shape, index, strict=False))])


def _mask_entry(inputs: Inputs, row: Row, j: int) -> Any:
    """mask[b, h, i, j], the mask's axes aligned at the last and repeated where of length 1."""
    assert inputs.mask is not None
    shape = inputs.mask.shape
    index = (*row, j)[4 - len(shape) :]
    return inputs.mask[tuple(0 if n == 1 else x for n, x in zip(shape, index, strict=True))]


def _row(
    mp: Any, inputs: Inputs, row: Row, digits: int
) -> tuple[Array, Array, Array, tuple[float, float, float]]:
    """out, its low part and radius, each [Dv], and the same three of lse, for one row."""
    b, h, i = row
    c = h // (inputs.q.shape[1] // inputs.k.shape[1])
    d, dv = inputs.q.shape[3], inputs.v.shape[3]
    keys = [j for j in range(inputs.k.shape[2]) if sees(inputs, row, j)]
    sink = None if inputs.sinks is None else float(inputs.sinks[h])
    if not keys:
        alone = -math.inf if sink is None else sink
        return np.zeros(dv), np.zeros(dv), np.zeros(dv), (alone, 0.0, 0.0)

    q = [float(x) for x in inputs.q[b, h, i]]
    k = {j: [float(x) for x in inputs.k[b, c, j]] for j in keys}
    v = {j: [float(x) for x in inputs.v[b, c, j]] for j in keys}
    biases = {j: bias(inputs, row, j) for j in keys}
    of_q = descale(inputs, "q", b, h, i)
    of_k = {j: descale(inputs, "k", b, c, j) for j in keys}
    of_v = {j: descale(inputs, "v", b, c, j) for j in keys}
    numbers = [q, *k.values(), *v.values(), list(biases.values()), [inputs.scale or 0.0]]
    if not all(math.isfinite(x) for tensor in numbers for x in tensor):
        nothing = np.full(dv, np.nan)
        return nothing, nothing, np.full(dv, np.inf), (math.nan, math.nan, math.inf)

    bits = math.ceil(digits * math.log2(10))
    mp.prec = 64
    magnitude = mp.mpf(1.0 if inputs.scale is None else abs(inputs.scale)) * d
    magnitude *= max(abs(x) for x in q)
    magnitude *= max(abs(x) for key in k.values() for x in key)
    magnitude *= abs(of_q) * max(map(abs, of_k.values()))
    magnitude += max(abs(x) for x in biases.values())
    slope, place = 0.0, own_key(inputs, row)
    if inputs.alibi_slopes is not None:
        slope = float(inputs.alibi_slopes[h])
    magnitude += mp.mpf(abs(slope)) * max(abs(place - j) for j in keys)
    magnitude += abs(sink or 0.0)
    amplification = 8 * (d + 16) * (int(magnitude) + 2) + 40 * (len(keys) + 1) + 64
    mp.prec = bits + amplification.bit_length()

    scale = 1 / mp.sqrt(mp.mpf(d)) if inputs.scale is None else mp.mpf(inputs.scale)
    s = {}
    for j in keys:
        dot = mp.mpf(0)
        for q_d, k_d in zip(q, k[j], strict=True):
            dot += mp.mpf(q_d) * mp.mpf(k_d)
        t = scale * mp.mpf(of_q) * mp.mpf(of_k[j]) * dot
        if inputs.softcap:
            t = mp.mpf(inputs.softcap) * mp.tanh(t / mp.mpf(inputs.softcap))
        s[j] = t - mp.mpf(slope) * abs(place - j) + mp.mpf(biases[j])
    m = max(s.values()) if sink is None else max(*s.values(), mp.mpf(sink))
    p = {j: mp.exp(s[j] - m) for j in keys}
    normalizer = mp.mpf(0) if sink is None else mp.exp(mp.mpf(sink) - m)
    for j in keys:
        normalizer += p[j]

    out, out_low = np.empty(dv), np.empty(dv)
    for e in range(dv):
        total = mp.mpf(0)
        for j in keys:
            total += p[j] * mp.mpf(of_v[j]) * mp.mpf(v[j][e])
        out[e], out_low[e] = _pair(mp, total / normalizer)
    lse, lse_low = _pair(mp, m + mp.log(normalizer))

    # The slack and the added eta cover the roundings of these lines.
    tiny = 2.0 ** (1 - bits)
    weights = np.array([float(p[j] / normalizer) + _ETA for j in keys])
    values = np.array([[of_v[j] * x for x in v[j]] for j in keys])
    spread = weights @ (tiny * np.abs(values) + _ETA)
    out_radius = (spread + _PAIR * np.abs(out)) * _SLACK + 2 * _ETA
    lse_radius = (tiny + _PAIR * abs(lse)) * _SLACK + 2 * _ETA
    return out, out_low, out_radius, (lse, lse_low, lse_radius)


def _pair(mp: Any, x: Any) -> tuple[float, float]:
    """x as the float64 nearest to it and the float64 nearest to what is left.

    The subtraction is exact: the remainder has no more bits than x. Beyond float64's range
    the first is infinite and the second 0, and so is the radius.
    """
    high = float(x)
    return (high, 0.0) if math.isinf(high) else (high, float(x - mp.mpf(high)))
