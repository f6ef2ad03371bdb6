"""Float8: factors, offsets of P and shortened accumulators (docs/bound.md, section 18)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashcheck.bounds.arithmetic import Arithmetic
from flashcheck.formats import FLOAT8, Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.float64 import Attention


@dataclass(frozen=True, eq=False)
class Narrow:
    """The values as float8 numbers, with the sink as first key where there is one.

    bare [B, Hq, n, Dv]: |v| without its factor; lifted: |v|, at least the smallest normal number
    where it is not 0, with its factor; top [B, Hq, 1, 1]: the largest factor, at least 1;
    roundings: what applying v_descale costs a term.
    """

    bare: Array
    lifted: Array
    top: Array
    roundings: int

    def lost(self, ar: Arithmetic, seen: Bools, q: Array, growth: float) -> Array:
        """What a numerator loses, [B, Hq, Lq, Dv], besides what it loses in any dtype.

        q [B, Hq, Lq, n] bounds the weights, growth how far sums of them may be off.
        """
        shown = np.where(seen, 1.0, 0.0)
        # A product or a sum of the bare values underflows, and is multiplied by its factor; or
        # its product with the factor does.
        lost: Array = (4 * seen.shape[3] + 6) * np.maximum(ar.eta * self.top, ar.factor_loss)
        # The factor, or its quotient by the normalizer, underflows.
        reach = 2.0 ** (ar.lag + ar.most_offset)
        lost = lost + 2 * ar.factor_loss * reach * (shown @ self.bare)
        if ar.cut_acc:
            p = 1.0 if ar.p is None else 1 + ar.p.unit_roundoff
            summed = growth * (p * (q @ self.lifted) + ar.normal_p * (shown @ self.lifted))
            lost = lost + ar.cut(seen.shape[3], ar.block) * summed
        return lost


def narrow(x: Inputs) -> Narrow | None:
    """The values of float8 inputs; None for others."""
    if x.dtype not in FLOAT8:
        return None
    factor = np.abs(x.descale("v"))
    bare, lifted = np.abs(x.v), lift(x, x.v) * factor
    top = np.broadcast_to(np.maximum(factor, 1.0).max((2, 3), initial=1.0), x.v.shape[:2])
    bare, lifted = (np.repeat(each, x.heads_per_kv, axis=1) for each in (bare, lifted))
    if x.sinks is not None:
        none = np.zeros((*bare.shape[:2], 1, bare.shape[3]))
        bare, lifted = (np.append(none, each, 2) for each in (bare, lifted))
    top = np.repeat(top, x.heads_per_kv, axis=1)[:, :, None, None]
    return Narrow(bare, lifted, top, 0 if x.v_descale is None else 2)


def lift(x: Inputs, tensor: Array) -> Array:
    """Magnitudes, subnormal ones as the smallest normal number: a tensor core aligns these so."""
    return np.where(tensor == 0, 0.0, np.maximum(np.abs(tensor), x.format.min_normal))


def factors(x: Inputs) -> tuple[Array, Array]:
    """|q_descale| and |k_descale|, which multiply the scores: [B, Hq, Lq, 1], [B, Hq, 1, Lk].

    An axis on which a factor is constant may be 1.
    """
    q, k = np.abs(x.descale("q")), np.abs(x.descale("k"))
    if k.shape[1] > 1:
        k = np.repeat(k, x.heads_per_kv, axis=1)
    return q, k.swapaxes(2, 3)


def enlarged(x: Inputs) -> Array | float:
    """By how much factors, in whatever order they are applied, may enlarge what they multiply."""
    if x.q_descale is None and x.k_descale is None:
        return 1.0
    q, k = factors(x)
    return np.maximum(q, 1.0) * np.maximum(k, 1.0)


def largest_raw(x: Inputs, at: Attention) -> Array:
    """[B, Hq, Lq, Lk]: sum |q||k| without the scale, with those of the factors that enlarge it."""
    if x.q_descale is None and x.k_descale is None:
        return at.raw
    k = np.repeat(np.abs(x.k), x.heads_per_kv, axis=1)
    return np.asarray(np.abs(x.q) @ k.swapaxes(2, 3) * enlarged(x))


def cut_scores(x: Inputs, ar: Arithmetic) -> Array:
    """[B, Hq, Lq, Lk]: by how much a shortened accumulator of q.k may be off, scaled."""
    q, k = factors(x)
    lifted_k = np.repeat(lift(x, x.k), x.heads_per_kv, axis=1)
    magnitude = lift(x, x.q) @ lifted_k.swapaxes(2, 3) * (abs(x.exact_scale) * q * k)
    if ar.scaled is not None:
        # q or k times the scale is subnormal, and what multiplies it later may be larger.
        sums = lift(x, x.q).sum(-1, keepdims=True) + lifted_k.sum(-1)[:, :, None]
        magnitude = magnitude + ar.scaled.min_normal * sums * enlarged(x)
    return np.asarray(ar.cut(x.q.shape[3]) * magnitude)
