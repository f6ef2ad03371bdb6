"""lse: the bound on the log-sum-exp (docs/bound.md, section 7)."""

from __future__ import annotations

import math

import numpy as np

from flashcheck.bounds.arithmetic import EXP_FLUSH, WILD, Arithmetic
from flashcheck.formats import FORMATS, Array
from flashcheck.oracle.float64 import Attention, gamma

LOG_ERROR = 2.0**-21.41
"""Absolute error of a fast float32 logarithm near 1 (CUDA Programming Guide: __logf)."""


def lse_bound(
    at: Attention, ar: Arithmetic, delta: Array, r: Array, lead: Array, offset: Array
) -> Array:
    """[B, Hq, Lq]. delta and r [B, Hq, Lq, n] say how far each score and the rest of its weight
    may be off; lead [B, Hq, Lq], in nats, how far the maximum in use may lie below the largest
    score besides a lag; offset how far all scores may be shifted meanwhile.
    """
    n = delta.shape[3]
    gamma_l = gamma(ar.chain(n), ar.u)
    h = delta + r + gamma_l
    if ar.normalizer != "before_rounding" and ar.p is not None:
        h = h + ar.p.unit_roundoff * (1 + gamma_l)
    wild = delta.max(-1, initial=0.0) > WILD
    mean = np.where(wild, np.inf, (at.p * np.expm1(np.minimum(h, 300.0))).sum(-1))
    # The weights at hand are off by this much: more than `slack`, where scores are huge.
    mean = mean * np.exp(np.minimum(4 * at.lse_radius, 300.0))
    counts = (at.p > 0) | (wild[..., None] & (r > 0))
    worst = np.where(counts, h, 0.0).max(-1, initial=0.0)
    # With a lagging maximum m is smaller and log l larger by as much; so with an offset.
    log_l = np.log(np.maximum(at.l, 1.0)) + (ar.lag + ar.most_offset) * math.log(2) + lead
    log_error = LOG_ERROR if ar.u > 2.0**-50 else 4 * ar.u
    flush = n * (EXP_FLUSH * (1 + 2.0**ar.lag) + 3 * ar.eta)
    if ar.normalizer != "before_rounding" and ar.p is not None:
        flush = flush + n * ar.p.min_subnormal * 2.0**-ar.least_offset
    final = ar.u * (6 * np.abs(at.m) + 8 * log_l + 4 * np.abs(at.lse) + 12 * offset) + ar.eta
    scores = 10 * ar.u * delta.max(-1, initial=0.0)
    total = np.minimum(mean, worst) + log_error + flush + final + scores
    stored = FORMATS["float64" if ar.out.name == "float64" else "float32"]
    if ar.u < stored.unit_roundoff:  # statistics finer than the lse that the kernel returns
        total = total + stored.unit_roundoff * (np.abs(at.lse) + total) + stored.underflow
        total = total + (stored.min_normal if ar.flushes else 0.0)
    return np.asarray(total, np.float64)
