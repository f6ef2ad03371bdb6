"""Extent: the rows whose intermediate values fit the contract (docs/bound.md, 8 and 12)."""

from __future__ import annotations

import math

import numpy as np

from flashcheck.bounds.arithmetic import Arithmetic
from flashcheck.bounds.scores import alibi_offset
from flashcheck.bounds.sink import lead
from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.float64 import Attention, absolute


def in_contract(x: Inputs, at: Attention, ar: Arithmetic, delta_max: Array) -> Bools:
    """[B, Hq, Lq]: whether the row's intermediate values fit (contract, "problems whose ...").

    Hidden keys count: what overflows there is infinity minus infinity before it is hidden.
    """
    scale = max(1.0, abs(x.exact_scale))
    k_max = np.maximum(x.k.max((2, 3), initial=0.0), -x.k.min((2, 3), initial=0.0))
    k_max = np.repeat(k_max, x.heads_per_kv, axis=1)[:, :, None]
    largest = np.maximum(at.raw.max(-1, initial=0.0), at.a.max(-1, initial=0.0))
    fits = 1.5 * largest < ar.limit
    # q or k may be multiplied by the scale, or each by its root, before their product.
    fits &= 1.5 * scale * np.maximum(np.abs(x.q).max(-1), k_max) < ar.limit
    fits &= 1.5 * np.abs(at.s).max(-1, initial=0.0) < ar.limit
    if x.bias is not None:
        fits &= 1.5 * np.abs(x.bias).max(-1, initial=0.0) < ar.limit
    if x.softcap:
        largest = np.maximum(at.a.max(-1, initial=0.0), max(1.0, abs(x.exact_scale))) / x.softcap
        fits &= 1.5 * np.maximum(x.softcap, largest) < ar.limit
    offset = alibi_offset(x)
    if x.alibi is not None:
        fits &= 1.5 * (np.abs(x.alibi).max(-1, initial=0.0) + offset) < ar.limit
    # Rounding the row maximum, as computed, may raise P above 1 by this exponent.
    overshoot = 2 * ar.u * (np.abs(at.m) + delta_max + offset)
    if x.sinks is not None:
        fits &= 1.5 * np.abs(x.sinks)[:, None] < ar.limit
        # Where the maximum leaves the sink out, exp(sink - m) has to fit.
        above = lead(x, at) + delta_max + ar.lag * math.log(2) + overshoot
        fits &= (above < math.log(ar.limit)) | ~at.seen
    p_max = ar.p.max_finite if ar.p is not None else ar.limit
    fits &= overshoot < math.log(p_max)
    # Rows that see every key have one sum.
    shown = x.visible[:, :, :1] if x.visible.all() else x.visible
    sums = absolute(np.where(shown, 1.0, 0.0), at.v)
    fits &= 2.0**ar.lag * np.exp(np.minimum(overshoot, 300.0)) * sums.max(-1) < ar.limit
    if ar.scaled is not None:
        largest = 1.5 * abs(x.exact_scale) * np.maximum(np.abs(x.q).max(-1), k_max)
        fits &= largest < ar.scaled.max_finite
    return np.asarray(fits)
