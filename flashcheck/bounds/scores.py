"""Scores: how far a computed score may be off (docs/bound.md, section 2)."""

from __future__ import annotations

import numpy as np

from flashcheck.bounds.arithmetic import Arithmetic
from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.oracle.float64 import Attention, gamma


def score_error(x: Inputs, at: Attention, ar: Arithmetic) -> Array:
    """delta_j [B, Hq, Lq, Lk], 0 where the key is hidden."""
    d = x.q.shape[3]
    # The sums in one format, the scale in another; its root on each side makes five roundings.
    relative = (1 + gamma(d, ar.qk)) * (1 + gamma(5, ar.u)) * (1 + ar.input_error) ** 2 - 1
    if ar.scaled is not None:
        relative = (1 + relative) * (1 + ar.scaled.unit_roundoff) - 1
    delta = relative * at.a
    # Underflow: a product, a pre-scaled factor or a sum of them may lose eta; log2(e) folded
    # into the scale enlarges it by 1.45. A scale that is itself subnormal costs eta times the
    # raw sum.
    stretch = 1.45 * ar.eta * max(1.0, abs(x.exact_scale))
    k_sum = np.repeat(np.abs(x.k).sum(-1), x.heads_per_kv, axis=1)[:, :, None, :]
    q_sum = np.abs(x.q).sum(-1)[..., None]
    delta = delta + stretch * (2 * d + 2 + k_sum + q_sum) + 1.45 * ar.eta * at.raw
    if ar.scaled is not None:
        delta = delta + ar.scaled.underflow * (k_sum + q_sum)
    if x.bias is not None:
        delta = delta + ar.u * (2 * np.abs(x.bias) + np.abs(at.s) + delta) + 2 * ar.eta
    return np.where(x.visible, delta, 0.0)
