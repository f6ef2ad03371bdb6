"""Scores: how far a computed score may be off (docs/bound.md, sections 2 and 12)."""

from __future__ import annotations

import numpy as np

from flashcheck.bounds.arithmetic import Arithmetic
from flashcheck.bounds.float8 import cut_scores, enlarged, largest_raw
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.oracle.float64 import Attention, absolute_sums, gamma

TANH_ERROR = 16.0
"""Absolute error of tanh in unit roundoffs: what 1 - 2 / (exp(2 y) + 1) reaches."""


def score_error(x: Inputs, at: Attention, ar: Arithmetic) -> Array:
    """delta_j [B, Hq, Lq, Lk], 0 where the key is hidden."""
    d = x.q.shape[3]
    # The sums in one format, the scale in another; its root on each side makes five roundings,
    # and each factor of float8 inputs one more.
    scaling = 5 + (x.q_descale is not None) + (x.k_descale is not None)
    terms = ar.terms * d
    relative = (1 + gamma(terms, ar.qk)) * (1 + gamma(scaling, ar.scaling)) - 1
    relative = (1 + relative) * (1 + ar.input_error) ** 2 - 1
    if ar.scaled is not None:
        relative = (1 + relative) * (1 + ar.scaled.unit_roundoff) - 1
    delta = relative * at.a
    if ar.cut_qk:
        delta = delta + (1 + relative) * cut_scores(x, ar)
    # Underflow: a product, a pre-scaled factor or a sum of them may lose eta; log2(e) folded
    # into the scale enlarges it by 1.45. A scale that is itself subnormal costs eta times the
    # raw sum.
    alone = 1.45 * ar.eta * max(1.0, abs(x.exact_scale))
    stretch = alone * enlarged(x)
    k_sum = np.repeat(absolute_sums(x.k), x.heads_per_kv, axis=1)[:, :, None, :]
    q_sum = np.abs(x.q).sum(-1)[..., None]
    delta = delta + stretch * (2 * terms + 2 + k_sum + q_sum) + 1.45 * ar.eta * at.raw
    if ar.scaling_loss:
        lost = ar.scaling_loss * max(1.0, abs(x.exact_scale)) * enlarged(x)
        delta = delta + lost * (k_sum + q_sum)
    if x.q_descale is not None or x.k_descale is not None:
        # Two factors that are subnormal, and three products of them with the scale and log2(e).
        alone = 1.45 * ar.factor_loss * max(1.0, abs(x.exact_scale))
        delta = delta + 5 * alone * largest_raw(x, at)
    if ar.scaled is not None:
        delta = delta + ar.scaled.underflow * (k_sum + q_sum) * enlarged(x)
    if ar.input_error:
        # Below its normal range TF32 cuts off as much of a factor, however small that is.
        lost = 1.45 * max(1.0, abs(x.exact_scale)) * FORMATS["tf32"].min_subnormal
        delta = delta + lost * (k_sum + q_sum)
    if x.softcap:
        delta = _capped(x.softcap, at, ar, delta, largest_raw(x, at))
    if x.alibi is not None:
        delta = delta + _alibi(x, x.alibi, at, ar, delta)
    if x.bias is not None:
        offset = alibi_offset(x)[..., None]
        bias = ar.fold * np.abs(x.bias) + np.abs(at.s) + offset + delta
        delta = delta + ar.u * bias + 2 * ar.eta
    return np.where(x.visible, delta, 0.0)


def _capped(cap: float, at: Attention, ar: Arithmetic, delta: Array, raw: Array) -> Array:
    """The error of cap tanh(t / cap), t being off by delta."""
    # tanh is flattest farthest out: the slope is largest at the end next to 0.
    nearest = np.maximum(np.abs(at.dot) - delta, 0.0) / cap
    moved: Array = np.minimum(delta / np.cosh(np.minimum(nearest, 700.0)) ** 2, 2 * cap)
    # A quotient may underflow, and so may the scale divided by the cap.
    moved = moved + TANH_ERROR * ar.u * cap + ar.eta * (cap * (raw + 2) + 2)
    # 1 / cap, the quotient, the scale folded in, and the product with cap; log2(e) besides.
    result = np.minimum(cap, np.abs(at.dot)) + moved
    return moved + gamma(4 + ar.fold, ar.u) * result


def alibi_offset(x: Inputs) -> Array:
    """[B, Hq, Lq]: |slope (i + Lk - Lq)| where the row sees keys on one side of its own place.

    There -slope |i + Lk - Lq - j| and slope j differ by that constant, up to their sign, and
    a kernel may add the latter. Elsewhere, and without ALiBi, 0.
    """
    if x.alibi_slopes is None:
        return np.zeros(x.q.shape[:3])
    place = (x.span.place + x.span.shift)[:, None]
    left = (x.visible & (x.offsets < 0)).any(-1)
    right = (x.visible & (x.offsets > 0)).any(-1)
    offset = np.abs(x.alibi_slopes[:, None] * place)
    return np.where(left & right, 0.0, offset)


def _alibi(x: Inputs, alibi: Array, at: Attention, ar: Arithmetic, delta: Array) -> Array:
    """What adding alibi costs, beside a mask that is added before or after it."""
    offset = alibi_offset(x)[..., None]
    mask = 0.0 if x.bias is None else np.abs(x.bias)
    # The slope times log2(e), times the distance; then a sum, of any two of the three first.
    term = (1 + ar.fold) * (np.abs(alibi) + offset)
    total = np.abs(alibi) + offset + np.abs(at.s) + mask + delta
    # A slope that is subnormal after that factor is off by eta, times the distance.
    lost = ar.eta * (4 + np.abs(x.offsets) + x.k.shape[2])
    return np.asarray(ar.u * (term + total) + lost)
