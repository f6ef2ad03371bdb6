"""Gradients: what a tier of the oracle says about one backward, with its radii."""

from __future__ import annotations

from dataclasses import dataclass

from flashcheck.formats import FLOAT8, Array
from flashcheck.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Enclosure:
    """A tensor of exact results, enclosed: |exact - (value + low)| <= radius, element by element.

    The value is the unevaluated sum of two float64 numbers. A radius is infinite where the
    tier claims nothing; all three are NaN where nothing was computed.
    """

    value: Array
    low: Array
    radius: Array


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of sum(out * dout): dq [B, Hq, Lq, D], dk [B, Hkv, Lk, D], dv [B, Hkv, Lk, Dv].

    `tier` says who computed them. Rows that see no key, and keys that no row sees, have
    gradient 0 and radius 0.
    """

    dq: Enclosure
    dk: Enclosure
    dv: Enclosure
    tier: str


def check(x: Inputs, dout: Array) -> None:
    """Refuse a dout that belongs to another call, and a part of a call (`oracle.rows`).

    Errors: NotImplementedError for float8. ValueError where dout is not [B, Hq, Lq, Dv], or rows
    that share the keys are missing.
    """
    if x.dtype in FLOAT8:
        raise NotImplementedError("gradients of float8 inputs have no exact value and no bound yet")
    if x.places is not None:
        raise ValueError("dk and dv are sums over all rows of a call, and this is a part of one")
    shape = (*x.q.shape[:3], x.v.shape[3])
    if dout.shape != shape:
        raise ValueError(f"dout has shape {list(dout.shape)}; the output has {list(shape)}")
