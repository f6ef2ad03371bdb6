"""FlashAttention's arithmetic in PyTorch: half-precision products, float32 statistics.

What a GPU kernel does with half-precision inputs: q.k has exact products and float32 sums;
scores, m_i, l_i, alpha and acc are float32; P is rounded to the input dtype because it
feeds a tensor core; l_i is summed before that rounding; the output is rounded once.
Half precision is upcast before each product, which is exact: a float32 holds every product
of two halves, and PyTorch's own bfloat16 matmul may flush subnormals on a CPU.
Source: Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 1.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from flashcheck.kernel import Kernel


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    BLOCK_M: int = 64,
    BLOCK_N: int = 64,
    order: Literal["forward", "reverse"] = "forward",
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
    dtype, device = query.dtype, query.device
    stats = torch.float64 if dtype == torch.float64 else torch.float32
    batch, heads, len_q, head_dim = query.shape
    len_k = key.shape[2]
    sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale
    if enable_gqa:  # query head h reads key head h // (Hq // Hkv)
        group = heads // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, len_q, len_k)

    out = torch.empty(batch, heads, len_q, value.shape[3], dtype=dtype, device=device)
    lse = torch.empty(batch, heads, len_q, dtype=stats, device=device)
    for start_m in range(0, len_q, BLOCK_M):
        rows = slice(start_m, min(start_m + BLOCK_M, len_q))
        q = query[:, :, rows].to(stats)
        m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=stats, device=device)
        l_i = torch.zeros_like(m_i)
        acc = torch.zeros(*q.shape[:3], value.shape[3], dtype=stats, device=device)

        # Under a causal mask the blocks right of the diagonal are never visited.
        starts = range(0, min(len_k, rows.stop) if is_causal else len_k, BLOCK_N)
        for start_n in starts if order == "forward" else reversed(starts):
            cols = slice(start_n, min(start_n + BLOCK_N, len_k))
            k, v = key[:, :, cols].to(stats), value[:, :, cols].to(stats)
            s = (q @ k.transpose(-1, -2)) * sm_scale
            if attn_mask is not None:
                mask = attn_mask[:, :, rows, cols]
                if mask.dtype == torch.bool:
                    s = s.masked_fill(~mask, -math.inf)
                else:
                    s = s + mask.to(stats)
            if is_causal:  # aligned top-left: query i sees key j where j <= i
                i = torch.arange(rows.start, rows.stop, device=device)[:, None]
                j = torch.arange(cols.start, cols.stop, device=device)
                s = s.masked_fill(j > i, -math.inf)

            m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
            m_ref = m_new.masked_fill(m_new == -math.inf, 0.0)  # avoids inf - inf
            alpha = torch.exp(m_i - m_ref)
            p = torch.exp(s - m_ref)
            l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)  # P before it is rounded
            acc = acc * alpha + p.to(dtype).to(stats) @ v
            m_i = m_new

        out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)
        lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)  # log(0) is -inf
    return out, lse


kernel = Kernel(
    attention,
    dtypes=("float64", "float32", "float16", "bfloat16"),
    configs={
        "64x64": {"BLOCK_M": 64, "BLOCK_N": 64},
        "16x32": {"BLOCK_M": 16, "BLOCK_N": 32},
        "128x16": {"BLOCK_M": 128, "BLOCK_N": 16},
        "32x128": {"BLOCK_M": 32, "BLOCK_N": 128},
        "16x16_reverse": {"BLOCK_M": 16, "BLOCK_N": 16, "order": "reverse"},
    },
)
