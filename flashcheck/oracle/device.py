"""The float64 tier on a device: every row of a call that is too large for the CPU.

The evaluation and its radius are those of `float64`, in torch: sums may be taken in any order
there already. That torch's exp, log and tanh are as accurate on the device, that its float64
products are not made of narrower ones, and that it keeps subnormal numbers, is what `faults`
measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.oracle import selfcheck
from flashcheck.oracle.float64 import EXP_ERROR, U64, gamma
from flashcheck.oracle.value import Value

if TYPE_CHECKING:
    from torch import Tensor

SCORES = 1 << 24
"""Scores that are on the device at once; each takes some 100 bytes there."""


@dataclass(frozen=True, eq=False)
class Part:
    """Rows `rows` of head `h` of batch `b`, as float64 tensors on the device.

    out, out_radius, abs_out [rows, Dv], lse, lse_radius, m [rows] are those of
    `float64.Attention`; spread [rows, Dv] is sqrt(sum_j p_j (v_j - o)^2), size [rows]
    sqrt(sum_j p_j A_j^2).
    """

    b: int
    h: int
    rows: slice
    out: Tensor
    out_radius: Tensor
    abs_out: Tensor
    spread: Tensor
    lse: Tensor
    lse_radius: Tensor
    m: Tensor
    size: Tensor


def attention(x: Inputs, device: str, scores: int = SCORES) -> Value:
    """out [B, Hq, Lq, Dv] and lse [B, Hq, Lq] of every row, each with its radius."""
    b, hq, _, lq, _, _, dv = x.shape
    out, out_radius = np.empty((b, hq, lq, dv)), np.empty((b, hq, lq, dv))
    lse, lse_radius = np.empty((b, hq, lq)), np.empty((b, hq, lq))
    for part in parts(x, device, scores):
        at = part.b, part.h, part.rows
        for whole, one in (
            (out, part.out), (out_radius, part.out_radius), (lse, part.lse),
            (lse_radius, part.lse_radius),
        ):  # fmt: skip
            whole[at] = one.cpu().numpy()
    return Value(
        out, np.zeros_like(out), lse, np.zeros_like(lse), out_radius, lse_radius,
        f"float64 on {device}",
    )  # fmt: skip


def parts(x: Inputs, device: str, scores: int = SCORES) -> Iterator[Part]:
    """All rows of `x`, at most `scores` scores at once, or one row."""
    import torch

    b, hq, _, lq, n, _, _ = x.shape
    step = max(1, scores // max(n, 1))

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, torch.float64)

    for batch, head in np.ndindex(b, hq):
        if head % x.heads_per_kv == 0:
            kv = head // x.heads_per_kv
            k, v = tensor(x.exact_k[batch, kv]), tensor(x.exact_v[batch, kv])
        for first in range(0, lq, step):
            rows = slice(first, min(first + step, lq))
            q = tensor(x.exact_q[batch, head, rows])
            yield _part(x, (batch, head, rows), q, k, v)


def _part(x: Inputs, at: tuple[int, int, slice], q: Tensor, k: Tensor, v: Tensor) -> Part:
    """One part; the names and the proof are those of `float64.attention`."""
    import torch

    batch, head, rows = at
    n, d = k.shape
    a = q.abs() @ k.abs().T * abs(x.exact_scale)
    s = q @ k.T * x.exact_scale
    delta = gamma(d + 4, U64) * a
    seen, offsets = _visible(x, batch, head, rows, s)
    if x.softcap:
        s = x.softcap * torch.tanh(s / x.softcap)
        delta += gamma(7, U64) * s.abs()
    if x.alibi_slopes is not None:
        s = s - float(x.alibi_slopes[head]) * offsets.abs().double()
        delta += U64 * s.abs()
    if x.mask is not None and x.mask.dtype != bool:
        bias = _mask(x, batch, head, rows, s)
        bias = torch.where(bias == -torch.inf, 0.0, bias)
        s = s + bias
        delta += 2 * U64 * bias.abs()
    delta += U64 * s.abs()
    sink = None if x.sinks is None else float(x.sinks[head])
    sees = seen.any(1)
    hidden = s.new_tensor(-torch.inf)
    s = torch.where(seen, s, hidden)
    # amax of no key is an error; one hidden key more changes nothing.
    m = torch.cat([s, hidden.expand(s.shape[0], 1)], 1).amax(1)
    if sink is not None:
        m = m.clamp(min=sink)
    summed = sees if sink is None else torch.ones_like(sees)
    m = torch.where(summed, m, 0.0)
    gap = torch.where(seen, m[:, None] - s, torch.inf)
    w = torch.exp(-gap)
    l = w.sum(1)
    theta = torch.where(seen, delta + U64 * gap.clamp(max=746.0), 0.0) + EXP_ERROR
    h = torch.cat([theta, theta.new_full((s.shape[0], 1), EXP_ERROR)], 1).amax(1)
    if sink is not None:
        l = l + torch.exp(sink - m)
        h = torch.maximum(h, U64 * (m - sink).clamp(max=746.0) + EXP_ERROR)
        n += 1
    l = torch.where(summed, l, 1.0)
    p = w / l[:, None]
    out, abs_out = p @ v, p @ v.abs()
    lse = torch.where(summed, m + l.log(), -torch.inf)
    largest = v.abs().amax(0) if v.shape[0] else v.new_zeros(v.shape[1])
    relative = torch.expm1(4 * h) + gamma(2 * n + 3, U64)
    out_radius = relative[:, None] * abs_out * 1.01 + n * 2.0**-1022 * largest
    lse_radius = h + gamma(n + 1, U64) + 4 * U64 * (m.abs() + l.clamp(min=1.0).log() + 1)
    nowhere = torch.inf
    out_radius = torch.where(out_radius.isfinite() & out.isfinite(), out_radius, nowhere)
    lse_radius = torch.where(lse_radius.isfinite(), lse_radius, nowhere)
    return Part(
        batch, head, rows, out,
        out_radius=torch.where(sees[:, None], out_radius, 0.0),
        abs_out=abs_out,
        spread=(p @ (v * v) - out * out).clamp(min=0.0).sqrt(),
        lse=lse,
        lse_radius=torch.where(sees, lse_radius, 0.0),
        m=m,
        size=(p * a * a).sum(1).sqrt(),
    )  # fmt: skip


def _visible(x: Inputs, b: int, h: int, rows: slice, s: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, Lk]: which key takes part, and j - (i + Lk - Lq). As `Inputs.visible`, `.offsets`."""
    import torch

    spans = (n[b if len(n) > 1 else 0, rows, None] for n in x.span)
    first, last, place, shift = (torch.from_numpy(n.copy()).to(s.device) for n in spans)
    keys = torch.arange(s.shape[1], device=s.device)
    offsets = keys - (first + place + shift)
    seen = (keys >= first) & (keys < last)
    if x.mask is not None:
        mask = _mask(x, b, h, rows, s)
        seen &= mask if mask.dtype == torch.bool else mask != -torch.inf
    if x.is_causal:
        seen &= keys - first <= place + (shift if x.bottom_right else 0)
    left, right = x.window
    if left >= 0:
        seen &= offsets >= -left
    if right >= 0:
        seen &= offsets <= right
    return seen, offsets


def _mask(x: Inputs, b: int, h: int, rows: slice, s: Tensor) -> Tensor:
    """[rows, Lk]: the mask of these rows, bool or float64."""
    import torch

    mask: Any = x.mask
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    mask = mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0]
    mask = mask[rows] if mask.shape[0] > 1 else mask
    return torch.from_numpy(np.ascontiguousarray(mask)).to(s.device).expand(s.shape)


def faults(device: str) -> tuple[str, ...]:
    """What is wrong with float64 on a device; empty when it is as `float64` assumes."""
    import torch

    def there(name: str) -> Any:
        function = getattr(torch, name)
        return lambda x: function(torch.from_numpy(np.array(x)).to(device)).cpu().numpy()

    found = list(selfcheck.library_errors(there, f"{device}: torch").failures)
    tiny = torch.full((16,), 2.0**-1074, dtype=torch.float64, device=device) * 3.0
    if not (tiny.view(torch.int64) == 3).all():
        found.append(f"torch on {device} flushes subnormal float64 numbers to zero")
    # The second product is lost unless the sum keeps all of float64's 53 bits.
    left = torch.ones((64, 64), dtype=torch.float64, device=device)
    left[:, 1:] = 0
    left[:, 63] = 2.0**-26
    right = left.T.clone()
    if not (left @ right == 1 + 2.0**-52).all():
        found.append(f"torch on {device} multiplies float64 matrices with fewer than 53 bits")
    return tuple(found)
