"""Attention as the textbook writes it, in NumPy: every score is materialized.

    S = softcap(sm_scale * Q K^T) + ALiBi + mask,    P = softmax(S),    O = P V

Statistics are float32 (float64 for float64), P stays in that format and O is rounded once.
Source: Vaswani et al., *Attention Is All You Need*, eq. 1 (arXiv 1706.03762).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flashcheck.kernel import Kernel

Array = NDArray[Any]


def to_array(x: torch.Tensor) -> Array:
    """The tensor in the statistics' format: float64 stays, all else becomes float32, exactly."""
    stats = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.detach().cpu().to(stats).numpy()


def to_tensor(x: Array, like: torch.Tensor) -> torch.Tensor:
    """The array in the dtype and on the device of `like`: the one rounding of the output."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(like.device, like.dtype)


@np.errstate(all="ignore")
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
    q, k, v = to_array(query), to_array(key), to_array(value)
    if enable_gqa:  # query head h reads key head h // (Hq // Hkv)
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)

    s = (q @ k.swapaxes(-1, -2)) * sm_scale  # [B, Hq, Lq, Lk]
    len_q, len_k = s.shape[2:]
    # Of a key from its query's place, where the last query has that of the last key.
    offset = (np.arange(len_k) - np.arange(len_q)[:, None] - (len_k - len_q)).astype(q.dtype)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if alibi_slopes is not None:
        s = s - to_array(alibi_slopes).astype(q.dtype)[:, None, None] * np.abs(offset)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            s = np.where(attn_mask.cpu().numpy(), s, -np.inf).astype(q.dtype)
        else:
            s = s + to_array(attn_mask).astype(q.dtype)
    if is_causal:  # aligned top-left: query i sees key j where j <= i
        visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]
        s = np.where(visible, s, -np.inf).astype(q.dtype)
    left, right = window_size
    if left >= 0:
        s = np.where(offset >= -left, s, -np.inf).astype(q.dtype)
    if right >= 0:
        s = np.where(offset <= right, s, -np.inf).astype(q.dtype)

    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:  # one logit more a row, that carries no value
        sink = to_array(sinks).astype(q.dtype)[:, None, None]
        m = np.maximum(m, sink)
    p = np.exp(s - np.where(m == -np.inf, 0, m))  # a row that sees no key is all 0
    l = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        l = l + np.exp(sink - m)
    lse = (m + np.log(l))[..., 0]  # log(0) is -inf
    p = p / np.where(l == 0, 1, l)
    return to_tensor(p @ v, query), torch.from_numpy(lse).to(query.device)


kernel = Kernel(attention, dtypes=("float64", "float32", "float16", "bfloat16"))
