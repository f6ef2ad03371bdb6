"""FlashAttention-3's float8 arithmetic in PyTorch: factors by block, P enlarged before rounding.

q, k and v are float8 numbers with float32 factors (`quantization` makes them): one for a tensor,
one for each key head, or one for each block of DESCALE_M queries and DESCALE_N keys. The factors
of q and k join the scale of a tile, v's multiplies the tile's P.V. P lies in (0, 1] and most of it
would underflow in float8: it is made 2^P_OFFSET times as large by the exponential unit, in l_i
and acc too, where it cancels; only the logarithm has to know. Sums are float32, as on a tensor
core whose partial results are promoted.
Source: Shah et al., *FlashAttention-3* (arXiv 2407.08608), section 3.3, and its code
(github.com/Dao-AILab/flash-attention, hopper/softmax.h: `Max_offset`).
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, Literal

import torch

from flashcheck.kernel import Contract, Kernel

from .merge import State, merge

DESCALE_M, DESCALE_N = 16, 32
"""Queries and keys that share a factor, where factors are per block."""

P_OFFSET = 8
"""Octaves by which P is enlarged: 2^8 is the largest power of two below 448, e4m3's largest."""

LOG2E = math.log2(math.e)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    num_splits: int = 1,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    BLOCK_M: int = 64,
    BLOCK_N: int = 32,
    order: Literal["forward", "reverse"] = "forward",
    p_dtype: torch.dtype | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse.

    q_descale, k_descale, v_descale   [B, Hkv] or [B, Hkv, blocks]; None is 1
    BLOCK_N                           divides DESCALE_N
    p_dtype                           to which P is rounded; None: the inputs'
    """
    device, fp32 = query.device, torch.float32
    batch, heads, len_q, head_dim = query.shape
    len_k = key.shape[2]
    sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale
    k_all, v_all = key.to(fp32), value.to(fp32)
    group = heads // key.shape[1] if enable_gqa else 1  # query head h reads key head h // group
    k_all, v_all = k_all.repeat_interleave(group, dim=1), v_all.repeat_interleave(group, dim=1)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, len_q, len_k)

    ones = torch.ones(batch, heads // group, dtype=fp32, device=device)
    of_q = by_block(ones if q_descale is None else q_descale, group, -(-len_q // DESCALE_M))
    of_k = by_block(ones if k_descale is None else k_descale, group, -(-len_k // DESCALE_N))
    of_v = by_block(ones if v_descale is None else v_descale, group, -(-len_k // DESCALE_N))

    if num_splits < 1:
        raise ValueError(f"num_splits is {num_splits}; it must be 1 or more")
    p_format = query.dtype if p_dtype is None else p_dtype
    each = -(-len_k // (num_splits * BLOCK_N)) * BLOCK_N  # keys of a split, whole blocks
    out = torch.empty(batch, heads, len_q, value.shape[3], dtype=out_dtype, device=device)
    lse = torch.empty(batch, heads, len_q, dtype=fp32, device=device)
    for start_m in range(0, len_q, BLOCK_M):
        rows = slice(start_m, min(start_m + BLOCK_M, len_q))
        i = torch.arange(rows.start, rows.stop, device=device)
        q = query[:, :, rows].to(fp32)
        a = of_q[:, :, i // DESCALE_M, None]
        end = min(len_k, rows.stop) if is_causal else len_k
        parts: list[State] = []
        for split in range(num_splits):
            m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=fp32, device=device)
            l_i = torch.zeros_like(m_i)
            acc = torch.zeros(*q.shape[:3], value.shape[3], dtype=fp32, device=device)
            starts = range(split * each, min(end, (split + 1) * each), BLOCK_N)
            for start_n in starts if order == "forward" else reversed(starts):
                cols = slice(start_n, min(start_n + BLOCK_N, len_k))
                k, v = k_all[:, :, cols], v_all[:, :, cols]
                n = start_n // DESCALE_N
                b, c = of_k[:, :, n, None, None], of_v[:, :, n, None, None]
                s = (q @ k.transpose(-1, -2)) * (a * b * sm_scale)
                if attn_mask is not None:
                    mask = attn_mask[:, :, rows, cols]
                    if mask.dtype == torch.bool:
                        s = s.masked_fill(~mask, -math.inf)
                    else:
                        s = s + mask.to(fp32)
                if is_causal:  # aligned top-left: query i sees key j where j <= i
                    j = torch.arange(cols.start, cols.stop, device=device)
                    s = s.masked_fill(j > i[:, None], -math.inf)

                m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
                m_ref = m_new.masked_fill(m_new == -math.inf, 0.0)  # avoids inf - inf
                alpha = torch.exp2((m_i - m_ref) * LOG2E)
                p = torch.exp2((s - m_ref) * LOG2E + P_OFFSET)
                l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)  # P before it is rounded
                p = saturated(p, p_format).to(fp32)
                acc = acc * alpha + (p @ v) * c
                m_i = m_new
            parts.append((m_i, l_i, acc))

        m_i, l_i, acc = reduce(merge, parts)
        out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(out_dtype)
        lse[:, :, rows] = (m_i + torch.log(l_i * 2.0**-P_OFFSET)).squeeze(-1)  # log(0) is -inf
    return out, lse


def by_block(descale: torch.Tensor, group: int, blocks: int) -> torch.Tensor:
    """[B, Hkv] or [B, Hkv, blocks] as [B, Hq, blocks]: the query heads of a group share one."""
    factors = descale.repeat_interleave(group, dim=1)
    return factors if factors.dim() == 3 else factors[..., None].expand(-1, -1, blocks)


def saturated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded as cvt.satfinite does: beyond the largest number to that; torch gives NaN there."""
    return x.clamp(max=torch.finfo(dtype).max).to(dtype)


def _kernel(contract: Contract, **options: Any) -> Kernel:
    blocks: dict[str, dict[str, Any]] = {
        "64x32": {"BLOCK_M": 64, "BLOCK_N": 32},
        "16x16_reverse": {"BLOCK_M": 16, "BLOCK_N": 16, "order": "reverse"},
        "32x32_float16": {"BLOCK_M": 32, "BLOCK_N": 32, "out_dtype": torch.float16},
    }
    return Kernel(
        attention,
        dtypes=("float8_e4m3fn", "float8_e5m2"),
        descale_block=(DESCALE_M, DESCALE_N),
        configs={name: {**block, **options} for name, block in blocks.items()},
        contract=contract,
    )


# torch.exp2 is within an ulp or two; a GPU's ex2.approx is, too.
EXP_ERROR = 8 * 2.0**-24

kernel = _kernel(Contract(exp_error=EXP_ERROR, p_offset=float(P_OFFSET)))
variants = {
    "bfloat16_p": _kernel(
        Contract(exp_error=EXP_ERROR, p_offset=float(P_OFFSET), p_dtype="bfloat16"),
        p_dtype=torch.bfloat16,
    )
}
