"""Sink: the sink of a row as one key more (docs/bound.md, section 12).

Its score is the sink, its value 0. So the derivation for keys holds for it as it stands, but
for a kernel whose maximum leaves the sink out: the sink then lies above that maximum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flashcheck.bounds.arithmetic import Arithmetic
from flashcheck.bounds.scores import alibi_offset
from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle.float64 import Attention


def with_sink(
    x: Inputs, at: Attention, ar: Arithmetic, delta: Array
) -> tuple[Attention, Bools, Array]:
    """The scores, weights and values, who sees whom, and delta, each with the sink as first key.

    Without sinks as they are: s, p and the other two [B, Hq, Lq, Lk], v [B, Hq, Lk, Dv].
    """
    if x.sinks is None:
        return at, x.visible, delta
    z = np.broadcast_to(x.sinks[:, None], at.m.shape)[..., None]
    joined = replace(
        at,
        s=np.append(z, at.s, -1),
        p=np.append(np.exp(z - at.lse[..., None]), at.p, -1),
        v=np.append(np.zeros((*at.v.shape[:2], 1, at.v.shape[3])), at.v, 2),
    )
    # It is exact, but for the factor log2(e), and for the shift that ALiBi may give all scores.
    offset = alibi_offset(x)[..., None]
    shifted = np.where(offset > 0, np.abs(z) + (2 + ar.fold) * offset, 0.0)
    error = ar.u * (ar.fold * np.abs(z) + shifted) + 2 * ar.eta
    return joined, np.append(np.ones(z.shape, bool), x.visible, -1), np.append(error, delta, -1)


def lead(x: Inputs, at: Attention) -> Array:
    """[B, Hq, Lq]: by how many nats the sink exceeds every key that the row sees; 0 if by none.

    0 without sinks, and in a row that sees no key, whose lse the contract gives.
    """
    if x.sinks is None:
        return np.zeros_like(at.m)
    top = np.where(x.visible, at.s, -np.inf).max(-1, initial=-np.inf)
    return np.where(at.seen, np.maximum(x.sinks[:, None] - top, 0.0), 0.0)
