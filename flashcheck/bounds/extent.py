"""Extent: the rows whose intermediate values fit the contract (docs/bound.md, 8 and 12)."""

from __future__ import annotations

import math

import numpy as np

from flashcheck.bounds.arithmetic import LAG, Arithmetic
from flashcheck.bounds.float8 import enlarged, largest_raw
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
    largest_a, most = at.a, 1.0
    if x.q_descale is not None or x.k_descale is not None:
        # The scale and the factors may be applied in any order.
        largest_a = scale * largest_raw(x, at)
        most = np.broadcast_to(enlarged(x), at.a.shape).max(-1, initial=1.0)
    largest = np.maximum(at.raw.max(-1, initial=0.0), largest_a.max(-1, initial=0.0))
    fits = 1.5 * largest < ar.limit
    # q or k may be multiplied by the scale, or each by its root, before their product; scale,
    # log2(e) and factors by each other.
    multiplied = np.maximum(np.maximum(np.abs(x.q).max(-1), k_max), 1.0)
    fits &= 1.5 * scale * most * multiplied < ar.limit
    fits &= 1.5 * np.abs(at.s).max(-1, initial=0.0) < ar.limit
    if x.bias is not None:
        fits &= 1.5 * np.abs(x.bias).max(-1, initial=0.0) < ar.limit
    if x.softcap:
        largest = np.maximum(largest_a.max(-1, initial=0.0), scale * most) / x.softcap
        fits &= 1.5 * np.maximum(x.softcap, largest) < ar.limit
    offset = alibi_offset(x)
    if x.alibi is not None:
        fits &= 1.5 * (np.abs(x.alibi).max(-1, initial=0.0) + offset) < ar.limit
    # Rounding the row maximum, as computed, may raise P above 1 by this exponent.
    overshoot = 2 * ar.u * (np.abs(at.m) + delta_max + offset)
    if x.sinks is not None:
        fits &= 1.5 * np.abs(x.sinks)[:, None] < ar.limit
        # Where the maximum leaves the sink out, exp(sink - m) has to fit, besides a lag; where it
        # cannot, nothing excuses a kernel that leaves the sink out.
        enlarged_by = (ar.lag + ar.most_offset) * math.log(2)
        above = lead(x, at)
        small = above + delta_max + enlarged_by + overshoot < math.log(ar.limit)
        fits &= small | (above - delta_max >= math.log(4 * ar.limit)) | ~at.seen
    fits &= overshoot < _room(ar)
    values = at.v
    if x.v_descale is not None:  # which may be applied before or after the sum
        values = np.maximum(np.abs(values), np.repeat(np.abs(x.v), x.heads_per_kv, axis=1))
        # Infinity times a hidden key's weight, or times v = 0, is NaN.
        factor = np.abs(x.descale("v"))
        largest = (factor * np.maximum(np.abs(x.v), 1.0)).max((2, 3), initial=0.0)
        fits &= 1.5 * np.repeat(largest, x.heads_per_kv, axis=1)[..., None] < ar.limit
    # Rows that see every key have one sum.
    shown = x.visible[:, :, :1] if x.visible.all() else x.visible
    sums = absolute(np.where(shown, 1.0, 0.0), values)
    reach = 2.0 ** (ar.lag + ar.most_offset)
    fits &= reach * np.exp(np.minimum(overshoot, 300.0)) * sums.max(-1) < ar.limit
    if ar.scaled is not None:
        largest = 1.5 * abs(x.exact_scale) * most * np.maximum(np.abs(x.q).max(-1), k_max)
        fits &= largest < ar.scaled.max_finite
    return np.asarray(fits)


def _room(ar: Arithmetic) -> float:
    """Nats by which P may exceed what lag and offset let it reach, and still be rounded right."""
    if ar.p is None:
        return math.log(ar.limit)
    if ar.most_offset == 0 and ar.lag >= LAG:
        return math.log(ar.p.max_finite)
    largest = ar.p.max_finite
    reached = min((ar.lag + ar.most_offset) * math.log(2), math.log(largest))
    # Up to half a unit beyond the largest number, that is the nearest.
    top = largest + float(ar.p.ulp(largest)) / 2
    return math.log(top) - reached - math.log1p(ar.exp) - 3 * ar.u * ar.most_offset
