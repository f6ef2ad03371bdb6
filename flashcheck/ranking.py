"""Ranking: the rows of a call by how far a result is off, every one of them evaluated.

A call of 2^31 scores is too large for the oracle and the bound, but not for one evaluation in
float64 on a GPU. What is there compared with the bound's terms of first order is no verdict: it
says which rows deserve one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashcheck.bounds import Arithmetic, arithmetic
from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import device as on_device
from flashcheck.oracle.definition import Row
from flashcheck.oracle.float64 import gamma

if TYPE_CHECKING:
    from torch import Tensor


def worst_rows(
    x: Inputs, out: Array, lse: Array | None, count: int, contract: Contract, device: str
) -> list[Row]:
    """The `count` rows (b, h, i) of a kernel's out [B, Hq, Lq, Dv] and lse [B, Hq, Lq] that are
    farthest off, worst first.
    """
    ar = arithmetic(contract, x.dtype, device)
    off = np.empty(x.q.shape[:3])
    for part in on_device.parts(x, device):
        at = part.b, part.h, part.rows
        off[at] = _off(x, ar, part, out[at], None if lse is None else lse[at])
    worst = np.argsort(-off, axis=None, kind="stable")[:count]
    indices = np.unravel_index(worst, off.shape)
    return [(int(b), int(h), int(i)) for b, h, i in zip(*indices, strict=True)]


def _off(x: Inputs, ar: Arithmetic, part: on_device.Part, out: Array, lse: Array | None) -> Array:
    """[rows]: error / bound, the bound being about right."""
    import torch

    def there(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(part.out)

    u_p = 0.0 if ar.p is None else ar.p.unit_roundoff
    score = gamma(x.q.shape[3] + 5, ar.qk) * part.size
    weight = 2 * ar.exp + 10 * ar.u + u_p
    bound = (score[:, None] * part.spread + weight * part.abs_out) + (
        ar.out.unit_roundoff * part.out.abs() + ar.out.underflow
    )
    off = ((there(out) - part.out).abs() / bound).nan_to_num(torch.inf).amax(1)
    if lse is not None:
        bound = score + ar.exp + ar.u * (10 + 6 * part.m.abs())
        both_empty = torch.isneginf(part.lse) & torch.isneginf(there(lse))
        error = torch.where(both_empty, 0.0, (there(lse) - part.lse).abs())
        off = torch.maximum(off, (error / bound).nan_to_num(torch.inf))
    return np.asarray(off.cpu().numpy(), np.float64)
