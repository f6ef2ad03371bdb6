"""The fast tier: attention in float64, with an a-priori radius.

Derivation of the radius. Let u = 2^-53 and n = Lk. Products of float32 or narrower inputs
are exact in float64, the scale 1/sqrt(D) carries two roundings and its product one, a bias
one more, so a score is off by at most

    delta_j = gamma_{D+4} A_j + 2 u |b_j| + u |s_j|,      A_j = |scale| sum_c |q_c k_jc|.

The weight exp(s_j - m) then has, up to a factor common to the row, the relative error
e^theta_j - 1 with |theta_j| <= delta_j + u min(m - s_j, 746) + E_EXP; below -745 the weight
is under 2^-1074 and enters an absolute term. With H = max_j of that,

    |o~ - o| <= (e^{2H} - 1 + gamma_{2n+3}) sum_j p_j |v_j| + n 2^-1022 max|v|.

The code takes e^{4H}, which covers that sum_j p_j |v_j| is itself off by e^{2H}, and for H the
sum of two maxima over the keys of the row instead of the maximum of the sum,

    H = max_j (gamma_{D+4} A_j + 2 u |b_j|) + u max(m, min(m - z, 746) - z) + E_EXP,

z = min(0, min_j s_j): |s| + min(m - s, 746) grows with |s| below 0 and is at most m above. That
is at most twice H as above, and without biases 1 + 3 / (D + 4) times, since |s_j| and half of
m - s_j are below max_j A_j.

float8's factors are multiplied into q, k and v first, exactly. Their products, of 28 bits each,
are then rounded: D - 1 sums and four more roundings, D + 3 in all.

A softcap c tanh(s / c) has a derivative of at most 1, so delta_j does not grow; the quotient's
rounding is worth at most as much relative to the result, since x tanh'(x) <= tanh(x), np.tanh
has 4 u and the product u: gamma_7 |c tanh(s / c)| is added. ALiBi is exact, and its sum costs
u |s_j + alibi_j|. A sink is one key more, of exact score and value 0.

The errors of np.exp and np.tanh are assumptions about NumPy, which `oracle.selfcheck` verifies
at start-up. Reference: Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed.,
sections 3.1 and 4.2; Blanchard, Higham, Higham, IMA J. Numer. Anal. 41 (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs

U64 = 2.0**-53
EXP_ERROR = 4 * U64
"""Relative error of np.exp on [-745, 0] that the radius assumes: two units in the last place.

It assumes the same of np.tanh.
"""


BLOCK = 1 << 14
"""Numbers of k or v whose magnitudes are held at a time: fresh memory costs more than products."""

BUFFER = 128
"""np.setbufsize where rows are broadcast: NumPy copies rows that are shorter than its buffer.

np.errstate limits its effect to the block.
"""


@dataclass(frozen=True, eq=False)
class Attention:
    """Everything the bound needs to know about a problem, in float64.

    s, a, p [B, Hq, Lq, Lk]: scores (0 where hidden), |scale| sum |q||k| of every key, and
    softmax weights (0 where hidden); raw: sum |q||k| without the scale; dot: scale q.k of
    every key, before softcap and biases; m, l, lse [B, Hq, Lq]: row maximum (0 for a row that
    sees no key), normalizer, log-sum-exp, a sink included in all three; seen [B, Hq, Lq]:
    whether the row sees a key; out [B, Hq, Lq, Dv]; v [B, Hq, Lk, Dv].
    """

    s: Array
    a: Array
    raw: Array
    dot: Array
    p: Array
    m: Array
    l: Array
    lse: Array
    seen: Bools
    out: Array
    v: Array
    abs_out: Array
    out_radius: Array
    lse_radius: Array


def gamma(n: float, u: float) -> float:
    """n u / (1 - n u), or infinity where n u >= 1."""
    return n * u / (1 - n * u) if n * u < 1 else float("inf")


def attention(x: Inputs) -> Attention:
    """Evaluate the definition in float64 with its radius. Shapes as in `Attention`."""
    *_, n, d, _ = x.shape
    repeat = x.heads_per_kv
    q, k, v = x.exact_q, x.exact_k, x.exact_v
    if repeat > 1:
        k, v = np.repeat(k, repeat, axis=1), np.repeat(v, repeat, axis=1)
    scale = x.exact_scale
    hides = not x.visible.all()
    with np.errstate(over="ignore", invalid="ignore"):
        np.setbufsize(BUFFER)
        raw = absolute_scores(q, k)
        a = abs(scale) * raw
        dot = q @ k.swapaxes(2, 3)
        dot *= scale
        s, delta = dot, gamma(d + 4, U64) * a
        if x.softcap:
            s = x.softcap * np.tanh(s / x.softcap)
            delta += gamma(7, U64) * np.abs(s)
        if x.alibi is not None:
            s = s + x.alibi
            delta += U64 * np.abs(s)
        if x.bias is not None:
            delta += 2 * U64 * np.abs(x.bias)
            s = s + x.bias
        seen: Bools = np.asarray(x.visible.any(-1), bool)
        sink = None if x.sinks is None else x.sinks[None, :, None]
        summed = seen if sink is None else np.ones_like(seen)
        shown = s
        if hides:
            shown, s = np.where(x.visible, s, -np.inf), np.where(x.visible, s, 0.0)
            delta = np.where(x.visible, delta, 0.0)
        m = shown.max(-1, initial=-np.inf)
        if sink is not None:
            m = np.maximum(m, sink)
        m = np.where(summed, m, 0.0)
        # Argument, exp and weight one after another in the same memory: fresh memory is slow.
        p = shown - m[..., None]
        np.exp(p, out=p)
        l = p.sum(-1)
        if sink is not None:
            l = l + np.exp(sink - m)
            n += 1
        total = np.where(summed, l, 1.0)
        p /= total[..., None]
        out = p @ v
        abs_out = absolute(p, v)
        lse = np.where(summed, m + np.log(total), -np.inf)

        lowest = s.min(-1, initial=0.0)
        h = np.maximum(m, np.minimum(m - lowest, 746.0) - lowest)
        h = delta.max(-1, initial=0.0) + U64 * h + EXP_ERROR
        if sink is not None:
            h = np.maximum(h, U64 * np.minimum(m - sink, 746.0) + EXP_ERROR)
        # The largest |v| of the head stands for keys whose weight is below 2^-1022.
        largest = np.maximum(v.max((2, 3), initial=0.0), -v.min((2, 3), initial=0.0))
        tiny = n * 2.0**-1022 * largest[:, :, None, None]
        out_radius = (np.expm1(4 * h) + gamma(2 * n + 3, U64))[..., None] * abs_out * 1.01 + tiny
        lse_radius = h + gamma(n + 1, U64) + 4 * U64 * (np.abs(m) + np.log(np.maximum(l, 1.0)) + 1)
    out_radius = np.where(np.isfinite(out_radius) & np.isfinite(out), out_radius, np.inf)
    lse_radius = np.where(np.isfinite(lse_radius), lse_radius, np.inf)
    out_radius = np.where(seen[..., None], out_radius, 0.0)
    # A sink alone is the lse exactly: log(1) is 0.
    lse_radius = np.where(seen, lse_radius, 0.0)
    return Attention(
        s=s, a=a, raw=raw, dot=dot, p=p, m=m, l=l, lse=lse, seen=seen, out=out, v=v,
        abs_out=abs_out, out_radius=out_radius, lse_radius=lse_radius,
    )  # fmt: skip


def _blocks(t: Array) -> Iterator[slice]:
    """Blocks of the keys of k or v."""
    b, h, n, d = t.shape
    step = max(128, BLOCK // max(b * h * d, 1))
    for i in range(0, n, step):
        yield slice(i, i + step)


def absolute_scores(q: Array, k: Array) -> Array:
    """sum |q||k| [B, H, Lq, Lk]."""
    q = np.abs(q)
    raw = np.empty((*q.shape[:3], k.shape[2]))
    for block in _blocks(k):
        np.matmul(q, np.abs(k[:, :, block]).swapaxes(2, 3), out=raw[..., block])
    return raw


def absolute(weights: Array, v: Array) -> Array:
    """weights @ |v|, [B, H, Lq, Dv] for [B, H, Lq, Lk]."""
    total = np.zeros((*weights.shape[:3], v.shape[3]))
    for block in _blocks(v):
        total += weights[..., block] @ np.abs(v[:, :, block])
    return total


def absolute_sums(t: Array) -> Array:
    """sum |t| over the channels of k or v: [B, H, L]."""
    sums, ones = np.empty(t.shape[:3]), np.ones(t.shape[3])
    for block in _blocks(t):
        sums[:, :, block] = np.abs(t[:, :, block]) @ ones
    return sums
