r"""The fast tier of the backward: gradients in float64, with an a-priori radius.

With p and o of a row (`oracle.float64`), sigma the scale and C a group of query heads,

    dp_ij = sum_t dout_it v_jt,   delta_i = sum_t dout_it o_it,   g_ij = dp_ij - delta_i,
    ds_ij = p_ij g_ij c_ij,   dq_i = sigma sum_j ds_ij k_j,   dk_j = sigma sum_{C, i} ds_ij q_i,
    dv_j = sum_{C, i} p_ij dout_i.

Derivation of the radius. Let u = 2^-53 and f_ij = sum_t |dout_it v_jt|. The forward's
lse_radius is at least H + gamma_{n+1}, H being the largest error of a row's exponents, and a
weight divided by its row's sum is off by e^(2 H) and n roundings; so with lambda = lse_radius

    |p~ - p| <= p~ rho + tiny,    rho = e^{2 lambda} - 1,    tiny = 2^-1021,

tiny standing for weights below the normal range. Where lambda > 1/4 nothing is claimed. From
one sum or product to the next, each of n terms costing gamma_n (Higham 2002, section 3.1),

    e_g  = gamma_dv f_ij + sum_t |dout_it| (out_radius_it + gamma_dv |o_it|) + u |g|
    e_ds = p~ (rho (|g| + e_g) + e_g) + u |ds| + tiny (|g| + e_g + 1)
    e_dq = |sigma| sum_j (e_ds + gamma_{n+4} (|ds| + e_ds)) |k_j|,   dk and dv alike,

four roundings for sigma = 1/sqrt(D), its product and what is dropped. c_ij = 1 - y^2, where
y = tanh(t / cap) for the scaled score t, and 1 without a softcap, is (1 - y)(1 + y): tanh's own
error of 4 u and that of t, through a slope of at most 1, give

    e_y = 4 u + (gamma_{d+4} |sigma| sum |q||k| + u |t|) / cap,    e_c = 2 e_y + e_y^2 + 3 u,

and ds is off by (c + e_c) e_ds + e_c |p g| + u |ds|. The radius is taken
1.01 times, which covers its own evaluation, and products that underflow cost tiny each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.backward.gradients import Enclosure, check
from flashcheck.oracle.float64 import (
    BUFFER,
    EXP_ERROR,
    U64,
    Attention,
    absolute,
    absolute_scores,
    gamma,
)

TINY = 2.0**-1021


@dataclass(frozen=True, eq=False)
class Backward:
    """Everything the bound needs to know about a backward, in float64.

    f [B, Hq, Lq, Lk]: sum_t |dout v| of every key, hidden ones too; g, g_radius, ds, ds_radius
    of the same shape, 0 where the key is hidden; slope, slope_radius: that of the softcap, 1
    and 0 without one; rho [B, Hq, Lq]: relative error of the softmax weights; dq [B, Hq, Lq,
    D], dk [B, Hkv, Lk, D], dv [B, Hkv, Lk, Dv].
    """

    f: Array
    g: Array
    g_radius: Array
    ds: Array
    ds_radius: Array
    slope: Array
    slope_radius: Array
    rho: Array
    dq: Enclosure
    dk: Enclosure
    dv: Enclosure


def backward(x: Inputs, dout: Array, at: Attention) -> Backward:
    """The gradients of sum(out * dout) for dout [B, Hq, Lq, Dv]; `at` is the forward's result.

    Errors: those of `gradients.check`.
    """
    check(x, dout)
    b, _, hkv, lq, n, _, dv = x.shape
    scale, repeat = abs(x.exact_scale), x.heads_per_kv
    k = np.repeat(x.k, repeat, axis=1) if repeat > 1 else x.k
    abs_dout, abs_q = np.abs(dout), np.abs(x.q)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        np.setbufsize(BUFFER)
        f = absolute_scores(dout, at.v)
        dp = dout @ at.v.swapaxes(2, 3)
        delta = (dout * at.out).sum(-1, keepdims=True)
        off = at.out_radius + gamma(dv, U64) * np.abs(at.out)
        e_delta = (abs_dout * off).sum(-1, keepdims=True)
        g = np.where(x.visible, dp - delta, 0.0)
        e_g = gamma(dv, U64) * f + e_delta + U64 * np.abs(g) + (dv + 1) * TINY
        e_g = np.where(x.visible, e_g, 0.0)
        rho = np.where(at.lse_radius <= 0.25, np.expm1(2 * np.minimum(at.lse_radius, 1)), np.inf)
        most = np.abs(g) + e_g
        ds = at.p * g
        e_p = at.p * rho[..., None] + TINY
        e_ds = e_p * most + at.p * e_g + U64 * np.abs(ds) + TINY
        slope, e_slope = _slope(x, at)
        if x.softcap:
            e_ds = (slope + e_slope) * e_ds + (e_slope + U64) * np.abs(ds) + TINY
            ds = ds * slope
        # A hidden weight is 0 exactly.
        e_ds, e_p = np.where(x.visible, e_ds, 0.0), np.where(x.visible, e_p, 0.0)

        def columns(left: Array, right: Array) -> Array:
            """The sum over all rows of a key head's query heads: [B, Hkv, Lk, channels]."""
            grouped = (b, hkv, repeat * lq)
            return left.reshape(*grouped, n).swapaxes(2, 3) @ right.reshape(*grouped, -1)

        many = gamma(n + 4, U64)
        dq = (ds @ k) * x.exact_scale
        e_dq = scale * absolute(e_ds + many * (np.abs(ds) + e_ds), k) + n * TINY * (1 + scale)
        rows = repeat * lq
        many = gamma(rows + 4, U64)
        dk = columns(ds, x.q)
        dk *= x.exact_scale
        e_dk = columns(e_ds + many * (np.abs(ds) + e_ds), abs_q)
        e_dk *= scale
        e_dk += rows * TINY * (1 + scale)
        d_v = columns(at.p, dout)
        e_dv = columns(e_p + many * (at.p + e_p), abs_dout)
        e_dv += rows * TINY
    touched = x.visible.reshape(b, hkv, repeat * lq, n, 1).any(2)
    return Backward(
        f=f, g=g, g_radius=e_g, ds=ds, ds_radius=e_ds, slope=slope, slope_radius=e_slope, rho=rho,
        dq=_enclose(dq, e_dq, at.seen[..., None]),
        dk=_enclose(dk, e_dk, np.asarray(touched)), dv=_enclose(d_v, e_dv, np.asarray(touched)),
    )  # fmt: skip


def _slope(x: Inputs, at: Attention) -> tuple[Array, Array]:
    """1 - tanh^2 of the softcap and its radius, [B, Hq, Lq, Lk]; 1 and 0 without one."""
    if not x.softcap:
        return np.ones(()), np.zeros(())
    y = np.tanh(at.dot / x.softcap)
    off = gamma(x.q.shape[3] + 4, U64) * at.a + U64 * np.abs(at.dot)
    e_y = EXP_ERROR + off / x.softcap
    return (1 - y) * (1 + y), 2 * e_y + e_y * e_y + 3 * U64


def _enclose(value: Array, radius: Array, touched: Bools) -> Enclosure:
    """Exactly 0 where nothing contributes; an infinite radius where something overflowed."""
    radius = 1.01 * radius
    finite = np.isfinite(radius) & np.isfinite(value)
    if not finite.all():
        radius = np.where(finite, radius, np.inf)
    if not touched.all():
        value, radius = np.where(touched, value, 0.0), np.where(touched, radius, 0.0)
    return Enclosure(value, np.zeros_like(value), radius)
