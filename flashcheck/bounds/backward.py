r"""Backward: the bound on dq, dk and dv (docs/bound.md, sections 13 to 17).

A kernel recomputes P from its own lse, or differentiates its softmax directly, and forms
dP = dout v^T, dS = P (dP - delta), dq = scale dS k, dk = scale dS^T q, dv = P^T dout, with
delta = sum dout out of its own out. Notation, besides that of `bounds`: f_ij =
sum_t |dout_it v_jt|; G_ij = sum_t dout_it (v_jt - o_it), dS_ij = p_ij G_ij; E_o, E_L the
forward's bounds on out and lse; c = 1 + u_p where P may be rounded, 1 elsewhere.

1. Weight. P^_j = p_j e^y (1 + rounding) + underflow, |y| <= r_j:
   r_j = delta_j + E_L + u (|s_j| + max(|m|, |lse|) + 5 (D_j + log l) + 6 (delta_j +
   max(delta, E_L))) - log(1 - e_x) - log(1 - (8 + n) u) + 4 u,
   e_P = p (c e^r - 1) + underflow,   P^ <= p + e_P.
2. Score gradient.
   e_delta = (1 + gamma_{2 dv+6}) sum |dout| E_o + gamma_{n+2 dv+6} sum (p + e_P) f
             + underflow  (gamma_2(u_p) sum (p + e_P) f more where the normalizer sums rounded P)
   e_G = (gamma_{dv+3} f + e_delta)(1 + 2 u) + u |G| + underflow
   e_dS = e_P |G| + (p + e_P)(e_G + 3 u (|G| + e_G)) + u_p (|dS| + ...) + underflow
   and with a softcap the factor 1 - tanh^2, off by e_c = 2 |tanh| e_y + e_y^2 + 4 u,
   e_y = delta_j / cap + 4 u
3. Gradients: sums of e_dS |k|, e_dS |q| and e_P |dout|, plus gamma of the number of terms
   times the sums of magnitudes, and one rounding of each. What underflows counts as often as
   the part of the scale that multiplies it afterwards.

Outside the contract's range the bound is infinite, and so it is wherever an infinity or a NaN
that arises in one row can reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashcheck.bounds import EVALUATION, Bound
from flashcheck.bounds.arithmetic import EXP_FLUSH, Arithmetic, arithmetic
from flashcheck.bounds.out import value_range
from flashcheck.bounds.scores import alibi_offset, score_error
from flashcheck.formats import Array, Bools, Format
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle.backward.float64 import Backward
from flashcheck.oracle.float64 import U64, Attention, gamma


@dataclass(frozen=True, eq=False)
class GradientBound:
    """Bounds on dq [B, Hq, Lq, D], dk [B, Hkv, Lk, D] and dv [B, Hkv, Lk, Dv], element by element.

    Infinite outside the contract; 0 in rows that see no key and for keys that no row sees.
    `vacuous_dq` and so on mark elements about which the bound says too little: infinite, or at
    least half of what the gradient could reach whatever the weights were, unless that is 0.
    """

    dq: Array
    dk: Array
    dv: Array
    vacuous_dq: Bools
    vacuous_dk: Bools
    vacuous_dv: Bools


def gradient_bound(
    x: Inputs,
    dout: Array,
    at: Attention,
    back: Backward,
    forward: Bound,
    contract: Contract,
    device: str = "cpu",
) -> GradientBound:
    """The bound on |gradient - exact gradient| of a kernel that keeps `contract`.

    dout [B, Hq, Lq, Dv], exact in the input dtype; `at` and `back` are the float64 tier's
    evaluations of the same problem, `forward` the bound on the kernel's own out and lse.
    """
    ar = arithmetic(contract, x.dtype, device)
    # Elementwise work between the sums is in either format.
    u = max(ar.u, ar.acc)
    weight_rounding, rounding = _roundings(x.dtype, ar)
    b, _, hkv, lq, n, _, _ = x.shape
    rows = x.heads_per_kv * lq
    k = np.repeat(x.k, x.heads_per_kv, axis=1)
    abs_q, abs_k, abs_dout = np.abs(x.q), np.abs(k), np.abs(dout)
    scale = abs(x.exact_scale)
    shrink, stretch = _factors(x, ar)

    def columns(left: Array, right: Array) -> Array:
        """sum over the rows of a group's heads: [B, Hkv, Lk, channels]."""
        shape = (b, hkv, rows)
        return left.reshape(*shape, n).swapaxes(2, 3) @ right.reshape(*shape, right.shape[3])

    def any_row(where: Bools) -> Bools:
        """[B, Hq, Lq, keys] to [B, Hkv, keys, 1]: whether it holds in a row of the group."""
        return np.asarray(where.reshape(b, hkv, rows, where.shape[3], 1).any(2))

    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        p = at.p * (1 + back.rho[..., None])
        score = score_error(x, at, ar)
        e_p = _weight_error(x, at, back, score, forward.lse, ar, weight_rounding)
        most_p = p + e_p
        delta_off = (abs_dout * forward.out).sum(-1, keepdims=True)
        e_ds, lost = _score_gradient_error(
            x, at, back, ar, u, rounding, shrink, p, e_p, delta_off, score
        )
        most_ds = np.abs(back.ds) + back.ds_radius + e_ds + lost

        def gradient(sums: tuple[Array, Array, Array, Array], terms: int) -> Array:
            """From the sums over `terms` terms of error, of what underflows, of magnitude with
            its factor and without: the error before the last rounding."""
            error, absolute, magnitude, plain = sums
            relative = (1 + gamma(terms, ar.acc)) * (1 + gamma(10, u)) - 1
            # q or k times a part of the scale may underflow, and meets the other part after.
            part = stretch if x.softcap else max(1.0, math.sqrt(scale)) * _octaves(ar)
            small = ar.eta * (stretch * (2 * terms + 4) + part * (plain + magnitude))
            if ar.scaled is not None:
                relative = (1 + relative) * (1 + ar.scaled.unit_roundoff) - 1
                small = small + ar.scaled.underflow * plain
            inside = 1.5 * stretch * magnitude < ar.limit
            total = scale * (error + relative * magnitude) + stretch * absolute
            total = total + (1 + relative) * small
            return np.where(inside, total, np.inf)

        ones_k, ones_q = np.ones_like(abs_k[..., :1]), np.ones_like(abs_q[..., :1])
        e_dq = gradient((e_ds @ abs_k, lost @ abs_k, most_ds @ abs_k, most_ds @ ones_k), n)
        e_dk = gradient(
            (
                columns(e_ds, abs_q),
                columns(lost, abs_q),
                columns(most_ds, abs_q),
                columns(most_ds, ones_q),
            ),
            rows,
        )
        all_p = columns(most_p, abs_dout)
        e_dv = columns(e_p, abs_dout) + gamma(rows + 2, ar.acc) * all_p
        e_dv = np.where(1.5 * all_p < ar.limit, e_dv + (2 * rows + 4) * ar.eta, np.inf)

        # What can become infinite or NaN, and where it then gets to: a row's weights to
        # everything of its head, its dP and delta to all but dv, one dS to its row and key.
        fits = (most_p < weight_rounding.largest).all(-1, keepdims=True)
        weights = ~(fits & np.isfinite(forward.lse)[..., None])
        delta = (abs_dout * (np.abs(at.out) + forward.out)).sum(-1, keepdims=True)
        delta = np.maximum(delta, (most_p * back.f).sum(-1, keepdims=True))
        products = ~((1.5 * back.f < ar.limit).all(-1, keepdims=True) & (1.5 * delta < ar.limit))
        fits = (most_ds * stretch < rounding.largest) & (most_p * (back.f + delta) < ar.limit)
        overflow = x.visible & ~fits
        row = weights | products
        bad_dq = row | overflow.any(-1, keepdims=True)
        bad_dv = any_row(weights)
        bad_dk = any_row(row) | any_row(overflow)

    seen = at.seen[..., None]
    touched = any_row(x.visible)
    dq = _rounded(back.dq.value, back.dq.radius, e_dq, seen, bad_dq, ar)
    dk = _rounded(back.dk.value, back.dk.radius, e_dk, touched, bad_dk, ar)
    dv = _rounded(back.dv.value, back.dv.radius, e_dv, touched, bad_dv, ar)

    # What each could be whatever the weights of the rows were (section 16).
    with np.errstate(over="ignore", invalid="ignore"):
        spread = _spread(x, dout, at, back.f)
        reach_dq = scale * spread / 2 * np.maximum(*map(np.abs, value_range(x.visible, k)))
        reach_dk = scale / 4 * columns(np.where(x.visible, spread, 0.0), abs_q)
        reach_dv = columns(np.where(x.visible, 1.0, 0.0), abs_dout)
    return GradientBound(
        dq, dk, dv,
        _vacuous(dq, reach_dq), _vacuous(dk, reach_dk), _vacuous(dv, reach_dv),
    )  # fmt: skip


def _spread(x: Inputs, dout: Array, at: Attention, f: Array) -> Array:
    """By how much dP surely differs between two keys that a row sees, [B, Hq, Lq, 1]."""
    dp, off = dout @ at.v.swapaxes(2, 3), gamma(x.v.shape[3] + 2, U64) * f
    highest = np.where(x.visible, dp - off, -np.inf).max(-1, initial=-np.inf)
    lowest = np.where(x.visible, dp + off, np.inf).min(-1, initial=np.inf)
    if x.sinks is not None:  # a key more, of value 0
        highest, lowest = np.maximum(highest, 0.0), np.minimum(lowest, 0.0)
    return np.asarray(np.maximum(highest - lowest, 0.0)[..., None], np.float64)


def _vacuous(limit: Array, reach: Array) -> Bools:
    return np.asarray((reach > 0) & (~np.isfinite(limit) | (limit >= reach / 2)))


@dataclass(frozen=True, slots=True)
class _Rounding:
    """Rounding to narrower formats: relative error, loss below `normal`, largest number."""

    unit: float
    kappa: float
    normal: float
    largest: float


def _roundings(dtype: str, ar: Arithmetic) -> tuple[_Rounding, _Rounding]:
    """Those of P and of dS: P as declared; dS like P, or to the input dtype in half precision."""
    half = ar.out.precision < 24

    def of(*formats: Format) -> _Rounding:
        flushed = [f.min_normal if ar.flushes and f.min_exponent < -100 else 0.0 for f in formats]
        return _Rounding(
            unit=max((f.unit_roundoff for f in formats), default=0.0),
            kappa=max([*flushed, *(f.underflow for f in formats)], default=0.0),
            normal=max((f.min_normal for f in formats), default=0.0),
            largest=min([ar.limit, *(f.max_finite for f in formats)]),
        )

    declared = () if ar.p is None else (ar.p,)
    return of(*declared), of(*declared, *((ar.out,) if half else ()))


def _octaves(ar: Arithmetic) -> float:
    """By how much a factor log2(e) may enlarge something (more than 1.4427); 1 where none may."""
    return 1.45 if ar.fold else 1.0


def _factors(x: Inputs, ar: Arithmetic) -> tuple[float, float]:
    """The least and the most by which dS may be multiplied before it is rounded (section 15).

    What is left of the scale then multiplies its products, and is at most as large as the most.
    """
    parts = [1.0, abs(x.exact_scale)]
    if x.softcap:
        parts += [x.softcap, abs(x.exact_scale) / x.softcap]
    return min(parts) / _octaves(ar), max(parts) * _octaves(ar)


def _weight_error(
    x: Inputs,
    at: Attention,
    back: Backward,
    delta: Array,
    e_lse: Array,
    ar: Arithmetic,
    rounding: _Rounding,
) -> Array:
    """e_P [B, Hq, Lq, Lk], 0 where the key is hidden (section 14); delta: errors of scores."""
    n = x.k.shape[2]
    delta_max = delta.max(-1, keepdims=True, initial=0.0)
    e_lse = e_lse[..., None]
    lse = np.where(at.seen, at.lse, 0.0)[..., None]
    m = at.m[..., None]
    gap = np.abs(m - at.s) + np.abs(lse - m)
    magnitude = np.abs(at.s) + np.maximum(np.abs(m), np.abs(lse)) + 5 * gap
    magnitude = magnitude + 2 * alibi_offset(x)[..., None]
    # w / l may come from a maximum that lags.
    spread = np.where(x.visible, m - at.s, 0.0).max(-1, keepdims=True, initial=0.0) + 2 * delta_max
    magnitude = magnitude + 2 * np.minimum(spread, ar.lag * math.log(2))
    r = delta + e_lse - math.log1p(-ar.exp) - math.log1p(-min((8 + n) * ar.u, 0.5)) + 4 * ar.u
    r = r + ar.u * (magnitude + 6 * (delta + np.maximum(delta_max, e_lse)))
    # A weight that is 0 in float64 may be one in the kernel where scores err wildly.
    grown = np.exp(np.minimum(at.s - lse + r, 700.0)) * (1 + rounding.unit)
    near = at.p * (np.expm1(np.minimum(r, 1.0)) * (1 + rounding.unit) + rounding.unit)
    e_p = np.where(r < 1, near, grown) * (1 + back.rho[..., None])
    lost = EXP_FLUSH * (1 + 2.0**ar.lag) + 2 * ar.eta
    lost = lost + np.where(at.p * np.exp(-r) < rounding.normal, rounding.kappa, 0.0)
    # Losses before the division are in units of the largest weight.
    lost = lost * np.exp(np.minimum(delta_max + e_lse, 300.0))
    return np.where(x.visible, e_p + lost, 0.0)


def _score_gradient_error(
    x: Inputs,
    at: Attention,
    back: Backward,
    ar: Arithmetic,
    u: float,
    rounding: _Rounding,
    shrink: float,
    p: Array,
    e_p: Array,
    delta_off: Array,
    score: Array,
) -> tuple[Array, Array]:
    """e_dS, and what dS loses besides below its normal range, scaled or not; [B, Hq, Lq, Lk].

    `delta_off` is sum |dout| E_o [B, Hq, Lq, 1], `score` the errors of scores (section 15).
    """
    n, dv = x.k.shape[2], x.v.shape[3]
    most_p = p + e_p
    g = np.abs(back.g) + back.g_radius
    # A sum of products loses eta in each product and, where results flush, in each sum.
    small = (2 * dv + 4) * ar.eta
    e_delta = (1 + gamma(2 * dv + 6, u)) * delta_off + (2 * n + 4) * ar.eta
    e_delta = e_delta + gamma(n + 2 * dv + 6, u) * (most_p * back.f).sum(-1, keepdims=True)
    e_delta = e_delta + small * (1 + most_p.sum(-1, keepdims=True))
    if ar.normalizer != "before_rounding" and ar.p is not None:
        # P divided by a sum of other roundings of P does not sum to 1.
        most_f = (most_p * back.f).sum(-1, keepdims=True)
        e_delta = e_delta + gamma(2, ar.p.unit_roundoff) * most_f
    e_dp = gamma(dv + 3, u) * back.f + small
    e_g = (e_dp + e_delta) * (1 + 2 * u) + u * g + ar.eta
    lost = np.full_like(p, ar.eta)
    e_ds = np.where(x.visible, e_p * g + most_p * (e_g + 3 * u * (g + e_g)) + 3 * ar.eta, 0.0)
    if x.softcap:
        e_tanh = score / x.softcap + 4 * u
        tanh = np.abs(np.tanh(at.dot / x.softcap))
        # Both slopes lie between 0 and 1, but for the error of tanh.
        e_slope = np.minimum(2 * tanh * e_tanh + e_tanh**2 + 4 * u, 1 + 100 * u)
        e_slope = e_slope + back.slope_radius
        slope = back.slope + e_slope
        # The slope may be multiplied by the scale over the cap, and underflow, first.
        lost = lost + ar.eta * (p * g + e_ds)
        e_ds = slope * e_ds + (e_slope + 3 * u * slope) * (p * g + e_ds) + 2 * ar.eta
        e_ds = np.where(x.visible, e_ds, 0.0)
    size = np.abs(back.ds)
    normal = shrink * (size - back.ds_radius - e_ds) >= rounding.normal
    lost = lost + np.where(normal, 0.0, rounding.kappa)
    lost = np.where(x.visible, lost, 0.0)
    return e_ds + rounding.unit * (size + back.ds_radius + e_ds), lost


def _rounded(
    exact: Array, radius: Array, error: Array, touched: Bools, bad: Bools, ar: Arithmetic
) -> Array:
    """The bound after the one rounding of the gradient; infinite where it may overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        tail = ar.out.underflow
        tail += ar.out.min_normal if ar.flushes and ar.out.min_exponent < -100 else 0.0
        size = np.abs(exact) + radius
        total = (error + ar.out.unit_roundoff * (size + error) + tail) * EVALUATION
        total = np.where(size + total < ar.out.max_finite, total, np.inf)
        total = np.where(touched, total, 0.0)
    return np.where(bad | np.isnan(total), np.inf, total)
