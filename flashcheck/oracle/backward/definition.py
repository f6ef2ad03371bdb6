r"""The definition of the backward, index by index, in multiple precision.

For query row (b, h, i), with c = h // (Hq / Hkv), J the keys that it sees and p its weights,

    dp_j = sum_e dout_e v_je,      delta = sum_{j in J} p_j dp_j,
    ds_j = p_j (dp_j - delta) (1 - tanh^2(t_j / cap)),    t_j the scaled score (no cap: factor 1)
    dq_x = scale sum_{j in J} ds_j k[b, c, j, x],

and for key (b, c, j), over the heads h of its group and the rows I_h that see it,

    dk_x = scale sum_h sum_{i in I_h} ds_hij q[b, h, i, x],
    dv_e = sum_h sum_{i in I_h} p_hij dout[b, h, i, e].

Like the forward's definition it is plain and slow, shares no code with a kernel or with a
faster tier, and from `Inputs` reads the raw tensors and, by `oracle.definition`, who sees whom.

**Radius.** Assumptions and notation are those of `oracle.definition`: w = 2^-prec, A >=
|scale| sum_d |q_d k_jd| + |ALiBi_j| + |bias_j|, A >= |sink|, and a weight is exp(s_j - m) e^t
with |t| <= (d + 50) max(1, A) w. With n keys, p is off by a factor exp(2 |t| + (n + 2) w);
with f_j = sum_e |dout_e v_je|, dp_j by (Dv + 1) w f_j, and delta by that, p's error and n w,
all times F = sum_j p_j f_j. So ds_j is off by (exp(x) - 1) p_j (f_j + F), and the sums by

    dq  (exp(x) - 1) |scale| sum_j p_j (f_j + F_i) |k_j|      (dk with |q_i| over the rows),
    dv  (exp(x) - 1) sum_i p_ij |dout_i|,
    x = (6 (d + 50) max(1, A, A / cap) + 4 n + Dv + R + 90) w,

R being the number of rows of a group. A cap puts 20 more roundings into a score, and into its
factor, which is at most 1, twice the error of tanh(t / cap): 2 (d + 5) A / cap + 40. The
working precision is chosen so that 2 x <= 2^-bits with bits = ceil(digits log2 10); the result
is rounded to a pair of float64 numbers, so

    radius = 2^-bits (those sums without their factor) + 2^-106 |result| + 2^-1074.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.oracle import definition
from flashcheck.oracle.backward.gradients import Enclosure, Gradients, check

Place = tuple[int, int, int]

_ETA = 2.0**-1074
_PAIR = 2.0**-106
_SLACK = 1.0 + 2.0**-20
"""Covers the few roundings with which a radius itself is evaluated."""


def gradients(
    x: Inputs,
    dout: Array,
    rows: Iterable[Place] | None = None,
    keys: Iterable[Place] | None = None,
    digits: int = 40,
) -> Gradients:
    """dq of the given rows (b, h, i), dk and dv of the given keys (b, hkv, j); None means all.

    The result has the full shapes, NaN where nothing was asked for.
    Errors: those of `gradients.check`.
    """
    check(x, dout)
    b, hq, hkv, lq, lk, d, dv = x.shape
    wanted_rows = np.ndindex(b, hq, lq) if rows is None else rows
    wanted_keys = np.ndindex(b, hkv, lk) if keys is None else keys
    dq, dk, d_v = (_empty(s) for s in ((b, hq, lq, d), (b, hkv, lk, d), (b, hkv, lk, dv)))
    call = _Call(x, dout, digits)
    for row in wanted_rows:
        call.dq((int(row[0]), int(row[1]), int(row[2])), dq)
    for key in wanted_keys:
        call.dk_dv((int(key[0]), int(key[1]), int(key[2])), dk, d_v)
    return Gradients(dq, dk, d_v, "mpmath")


def _empty(shape: tuple[int, ...]) -> Enclosure:
    return Enclosure(*(np.full(shape, np.nan) for _ in range(3)))


@dataclass(frozen=True)
class _Row:
    """What a query row gives to a key j that it sees: p_j, ds_j and p_j (f_j + F)."""

    p: dict[int, Any]
    ds: dict[int, Any]
    size: dict[int, Any]


class _Call:
    """One call's numbers in a precision that suits all of its rows."""

    def __init__(self, x: Inputs, dout: Array, digits: int) -> None:
        self.x, self.dout = x, dout
        self.mp = mpmath.mp.clone()
        mp = self.mp
        self.group = x.q.shape[1] // x.k.shape[1]
        self.rows: dict[Place, _Row] = {}
        self.bits = math.ceil(digits * math.log2(10))
        biases = np.zeros(1) if x.mask is None or x.mask.dtype == np.bool_ else x.mask
        biases = np.where(np.isneginf(biases), 0.0, biases)
        tensors = (x.q, x.k, x.v, dout, biases)
        self.finite = all(bool(np.isfinite(t).all()) for t in tensors)
        if not self.finite:
            return
        d, n, dv = x.q.shape[3], x.k.shape[2], x.v.shape[3]
        mp.prec = 64
        size = mp.mpf(1.0 if x.scale is None else abs(x.scale)) * d
        for tensor in (x.q, x.k):
            size *= float(np.abs(tensor).max(initial=0.0))
        size += float(np.abs(biases).max(initial=0.0))
        if x.alibi_slopes is not None:
            size += mp.mpf(float(np.abs(x.alibi_slopes).max())) * (x.q.shape[2] + n)
        if x.sinks is not None:
            size += float(np.abs(x.sinks).max())
        if x.softcap:
            size = max(size, size / mp.mpf(x.softcap))
        roundings = 6 * (d + 50) * (int(size) + 2) + 4 * n + dv + self.group * x.q.shape[2] + 90
        mp.prec = self.bits + 1 + roundings.bit_length()
        self.scale = 1 / mp.sqrt(mp.mpf(d)) if x.scale is None else mp.mpf(float(x.scale))

    def row(self, at: Place) -> _Row:
        """The row's weights and score gradients, computed once."""
        if at not in self.rows:
            self.rows[at] = self._row(at)
        return self.rows[at]

    def _row(self, at: Place) -> _Row:
        mp, x = self.mp, self.x
        b, h, i = at
        c = h // self.group
        q = [mp.mpf(float(a)) for a in x.q[b, h, i]]
        dout = [mp.mpf(float(a)) for a in self.dout[b, h, i]]
        slope = mp.mpf(0 if x.alibi_slopes is None else float(x.alibi_slopes[h]))
        own = definition.own_key(x, at)
        s, dp, f, factor = {}, {}, {}, {}
        for j in range(x.k.shape[2]):
            if not definition.sees(x, at, j):
                continue
            dot = mp.mpf(0)
            for q_d, k_d in zip(q, x.k[b, c, j], strict=True):
                dot += q_d * mp.mpf(float(k_d))
            t, factor[j] = self.scale * dot, mp.mpf(1)
            if x.softcap:
                tanh = mp.tanh(t / mp.mpf(x.softcap))
                t, factor[j] = mp.mpf(x.softcap) * tanh, 1 - tanh * tanh
            s[j] = t - slope * abs(own - j) + mp.mpf(definition.bias(x, at, j))
            dp[j], f[j] = mp.mpf(0), mp.mpf(0)
            for dout_e, v_e in zip(dout, x.v[b, c, j], strict=True):
                term = dout_e * mp.mpf(float(v_e))
                dp[j] += term
                f[j] += abs(term)
        if not s:
            return _Row({}, {}, {})
        sinks = [] if x.sinks is None else [mp.mpf(float(x.sinks[h]))]
        m = max([*s.values(), *sinks])
        w = {j: mp.exp(s[j] - m) for j in s}
        normalizer = mp.mpf(0)
        for sink in sinks:
            normalizer += mp.exp(sink - m)
        for j in w:
            normalizer += w[j]
        p = {j: w[j] / normalizer for j in w}
        delta, size = mp.mpf(0), mp.mpf(0)
        for j in p:
            delta += p[j] * dp[j]
            size += p[j] * f[j]
        ds = {j: p[j] * (dp[j] - delta) * factor[j] for j in p}
        return _Row(p, ds, {j: p[j] * (f[j] + size) for j in p})

    def dq(self, at: Place, into: Enclosure) -> None:
        b, h, _ = at
        if not self.finite:
            return self._unknown(at, into)
        row = self.row(at)
        for d in range(self.x.q.shape[3]):
            k = {j: self.mp.mpf(float(self.x.k[b, h // self.group, j, d])) for j in row.p}
            terms = [(row.ds[j] * k[j], row.size[j] * abs(k[j])) for j in row.p]
            self._store(into, (*at, d), terms, self.scale)
        return None

    def dk_dv(self, at: Place, dk: Enclosure, dv: Enclosure) -> None:
        b, c, j = at
        if not self.finite:
            self._unknown(at, dk)
            return self._unknown(at, dv)
        seen = []
        for h in range(c * self.group, (c + 1) * self.group):
            for i in range(self.x.q.shape[2]):
                if definition.sees(self.x, (b, h, i), j):
                    seen.append((h, i, self.row((b, h, i))))
        for d in range(self.x.q.shape[3]):
            terms = []
            for h, i, row in seen:
                q = self.mp.mpf(float(self.x.q[b, h, i, d]))
                terms.append((row.ds[j] * q, row.size[j] * abs(q)))
            self._store(dk, (*at, d), terms, self.scale)
        for e in range(self.x.v.shape[3]):
            terms = []
            for h, i, row in seen:
                dout = self.mp.mpf(float(self.dout[b, h, i, e]))
                terms.append((row.p[j] * dout, row.p[j] * abs(dout)))
            self._store(dv, (*at, e), terms, self.mp.mpf(1))
        return None

    def _store(
        self, into: Enclosure, at: tuple[int, ...], terms: list[tuple[Any, Any]], factor: Any
    ) -> None:
        """factor times the sum of (value, size), as a pair of float64 numbers with a radius."""
        total, size = self.mp.mpf(0), self.mp.mpf(0)
        for value, magnitude in terms:
            total += value
            size += magnitude
        total, size = total * factor, size * abs(factor)
        high = float(total)
        low = 0.0 if math.isinf(high) else float(total - self.mp.mpf(high))
        into.value[at], into.low[at] = high, low
        if terms:
            radius = float(self.mp.ldexp(size, -self.bits)) + _PAIR * abs(high)
            into.radius[at] = radius * _SLACK + 2 * _ETA
        else:
            into.radius[at] = 0.0

    def _unknown(self, at: Place, into: Enclosure) -> None:
        into.value[at], into.low[at], into.radius[at] = np.nan, np.nan, np.inf
