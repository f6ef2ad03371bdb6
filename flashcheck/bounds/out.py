"""Out: the bound on the output (docs/bound.md, sections 3 to 6)."""

from __future__ import annotations

import numpy as np

from flashcheck.bounds.arithmetic import EXP_FLUSH, WILD, Arithmetic
from flashcheck.bounds.float8 import Narrow
from flashcheck.formats import Array, Bools
from flashcheck.oracle.float64 import Attention, absolute, gamma

CHUNK = 1 << 15
"""Elements of the largest temporary array: a quarter of a megabyte stays in a core's cache."""


def out_bound(
    at: Attention,
    seen: Bools,
    ar: Arithmetic,
    delta: Array,
    r: Array,
    narrow: Narrow | None = None,
) -> tuple[Array, Array]:
    """(the bound, the largest |v| that the row sees), each [B, Hq, Lq, Dv].

    `seen` [B, Hq, Lq, n] says which key each row sees, delta and r how far its score and the
    rest of its weight may be off; `narrow` the values as float8, where they are.
    """
    n = seen.shape[3]
    p = at.p
    grow = np.minimum(delta, 300.0)
    np.expm1(grow, out=grow)
    shrunk = np.maximum((p * np.exp(-delta)).sum(-1, keepdims=True), 1e-300)
    # q_j bounds the share of key j however the scores err. Where they err wildly any key may
    # have all of it, and the output is still an average of the values seen.
    wild = delta.max(-1, keepdims=True, initial=0.0) > WILD
    share = p / shrunk
    c = share * grow
    q = np.minimum(share + c, 1.0)
    if wild.any():
        q = np.where(wild, np.where(seen, 1.0, 0.0), q)
        c = np.where(wild, np.where(seen, 1e300, 0.0), c)
    growth = np.minimum(r, 300.0)
    np.exp(growth, out=growth)
    grown = q * growth
    conditioning, spread, largest = _centred(seen, c, grown, at)

    gamma_acc = gamma(ar.chain(n), ar.acc)
    if narrow is not None:
        gamma_acc = (1 + gamma_acc) * (1 + gamma(narrow.roundings, ar.scaling)) - 1
    gamma_l = gamma(ar.chain(n), ar.u)
    # P normalized first divides each term: 4 u.
    products = absolute(q * ((1 + 4 * ar.division) * (1 + gamma_acc) * growth - 1), at.v)
    normalizer = (q * ((1 + gamma_l) * growth - 1)).sum(-1, keepdims=True)
    rounding = np.zeros_like(at.out)
    lost = np.zeros_like(p)
    if ar.p is not None:
        u_p = ar.p.unit_roundoff
        before = absolute(grown, at.v) if ar.normalizer != "after_rounding" else rounding
        after = spread + grown.sum(-1, keepdims=True) * conditioning
        rounding = u_p * (1 + gamma_acc) * np.maximum(before, after)
        # P's rounding meets the other errors where it enters the normalizer too.
        products, normalizer = products * (1 + 4 * u_p), normalizer * (1 + 4 * u_p)
        # Only a weight that can lie below P's smallest normal number underflows. Normalized
        # first, P is smallest: p_j itself.
        small = p * np.exp(-2 * np.minimum(delta + r, 300.0).max(-1, keepdims=True, initial=0.0))
        lost = np.where(seen & (small < ar.normal_p), ar.lost_in_p, 0.0)
    # Weights: exp flushed in P; in a rescale factor, of terms that a lagging maximum lets reach
    # 2^lag; and P / l underflowing.
    flushed = EXP_FLUSH * (1 + 2.0**ar.lag)
    lost = np.where(seen, lost + flushed + 2 * ar.eta, 0.0)
    # Products, rescales and, where results may flush, sums; twice for merged splits.
    underflow = absolute(lost, at.v) + (4 * n + 6) * ar.eta
    if narrow is not None:
        underflow = underflow + narrow.lost(
            ar, seen, grown, (1 + 4 * ar.division) * (1 + gamma_acc)
        )
    lost_sum = lost.sum(-1, keepdims=True) + n * ar.eta
    relative = normalizer + lost_sum
    if ar.p is not None:
        relative = relative + ar.p.unit_roundoff
    centre = np.abs(at.out) + conditioning
    rest = (products + rounding + underflow + centre * (normalizer + lost_sum)) / np.maximum(
        1 - relative, 1e-300
    )
    rest = np.where(relative < 0.9, rest, np.inf)
    inner = conditioning + rest
    inner = inner + 4 * ar.division * (np.abs(at.out) + inner)
    wide_range = ar.out.min_exponent < -100
    tail = ar.out.underflow + (ar.out.min_normal if ar.flushes and wide_range else 0.0)
    return inner + ar.out.unit_roundoff * (np.abs(at.out) + inner) + tail, largest


def _centred(seen: Bools, c: Array, q: Array, at: Attention) -> tuple[Array, Array, Array]:
    """Sums about the output, each [B, Hq, Lq, Dv], over the keys that a row sees:

    min(sum c_j |v_j - o|, max |v_j - o|), sum q_j |v_j - o| and max |v_j|.
    |v_j - o| is taken with the radius of o added, so that it is never too small.
    """
    b, h, rows, n = c.shape
    dv = at.v.shape[3]
    highest, lowest = value_range(seen, at.v)
    cap = np.maximum(np.maximum(highest - at.out, at.out - lowest) + at.out_radius, 0.0)
    weights = np.stack([c, q], axis=3)
    # The radius is the same for all keys.
    sums = weights.sum(-1)[..., None] * at.out_radius[..., None, :]
    # Keys last: NumPy is slow where a vector that it repeats is short.
    across = max(1, min(dv, CHUNK // max(4 * b * h * n, 1)))
    step = max(1, CHUNK // max(b * h * n * across, 1))
    memory = np.empty((b, h, min(step, rows), across, n))
    for first in range(0, dv, across):
        channels = slice(first, first + across)
        v = np.ascontiguousarray(at.v[..., channels].swapaxes(2, 3))[:, :, None]
        for i in range(0, rows, step):
            part = slice(i, i + step)
            away = memory[:, :, : min(step, rows - i), : v.shape[3]]
            np.subtract(v, at.out[:, :, part, channels, None], out=away)
            np.abs(away, out=away)
            sums[:, :, part, :, channels] += weights[:, :, part] @ away.swapaxes(3, 4)
    return np.minimum(sums[..., 0, :], cap), sums[..., 1, :], np.maximum(highest, -lowest)


def value_range(seen: Bools, v: Array) -> tuple[Array, Array]:
    """The largest and the smallest v that each row sees, [B, Hq, Lq, Dv]; 0 where it sees none."""
    b, h, rows, n = seen.shape
    counts = seen.sum(-1)
    if n == 0 or (counts == n).all():
        shape = (b, h, rows, v.shape[3])
        if n == 0:
            return np.zeros(shape), np.zeros(shape)
        ends = (v.max(2)[:, :, None], v.min(2)[:, :, None])
        return np.broadcast_to(ends[0], shape), np.broadcast_to(ends[1], shape)
    # Most rows see the first keys and no others: a causal mask, padding, no mask at all.
    last = np.maximum(counts - 1, 0)[..., None]
    highest = np.take_along_axis(np.maximum.accumulate(v, axis=2), last, axis=2)
    lowest = np.take_along_axis(np.minimum.accumulate(v, axis=2), last, axis=2)
    first_keys = (seen == (np.arange(n) < counts[..., None])).all(-1)
    for at in np.argwhere(~first_keys):
        row = tuple(at)
        shown = v[row[:2]][seen[row]]
        highest[row], lowest[row] = shown.max(0), shown.min(0)
    some = counts[..., None] > 0
    return np.where(some, highest, 0.0), np.where(some, lowest, 0.0)
