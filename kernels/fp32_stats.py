"""FlashAttention's arithmetic in PyTorch: half-precision products, float32 statistics.

What a GPU kernel does with half-precision inputs: q.k has exact products and float32 sums;
scores, m_i, l_i, alpha and acc are float32; P is rounded to the input dtype because it
feeds a tensor core; l_i is summed before that rounding; the output is rounded once.
Half precision is upcast before each product, which is exact: a float32 holds every product
of two halves, and PyTorch's own bfloat16 matmul may flush subnormals on a CPU.

A sink is the initial maximum of the first split, with l_i = 1. FlashAttention-4's options, each
with the contract that it needs: exp as a polynomial, and a maximum that may lag.
Source: Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, Literal

import torch

from flashcheck.kernel import Contract, Kernel

from . import exp2_polynomial
from .bottom_right import bottom_right
from .merge import State, merge
from .sequences import Sequence, attend, check


def packed(key: torch.Tensor, value: torch.Tensor, cu_q: Any, cu_k: Any) -> Iterator[Sequence]:
    """The sequences that lie one after another along L."""
    ends = (cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])
    for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True):
        rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
        yield (slice(None), slice(None), rows), key[:, :, cols], value[:, :, cols]


def paged(key: torch.Tensor, value: torch.Tensor, table: Any, lengths: Any) -> Iterator[Sequence]:
    """The sequences of a cache [pages, page size, Hkv, D]: whole pages, cut to their length."""
    size = key.shape[1]
    for b, len_k in enumerate(lengths.tolist()):
        pages = table[b, : -(-len_k // size)].long()
        k, v = (pool[pages].flatten(0, 1)[:len_k] for pool in (key, value))
        yield (slice(b, b + 1),), k.transpose(0, 1)[None], v.transpose(0, 1)[None]


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
    num_splits: int = 1,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    BLOCK_M: int = 64,
    BLOCK_N: int = 64,
    order: Literal["forward", "reverse"] = "forward",
    exp_degree: int | None = None,
    rescale_threshold: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse.

    max_seqlen_q, max_seqlen_k  size a GPU's grid, and are not needed here
    exp_degree         of the polynomial that P is made by; None: torch's exp
    rescale_threshold  octaves that the maximum has to grow by for sums to be rescaled
    """
    check(attn_mask, cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens, num_splits)
    if cu_seqlens_q is not None or block_table is not None:
        sequences = (
            paged(key, value, block_table, cache_seqlens)
            if block_table is not None
            else packed(key, value, cu_seqlens_q, cu_seqlens_k)
        )
        alone = partial(
            attention, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
            window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
            num_splits=num_splits, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, order=order,
            exp_degree=exp_degree, rescale_threshold=rescale_threshold,
        )  # fmt: skip
        return attend(alone, query, value.shape[3], sequences)

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

    left, right = window_size
    shift = len_k - len_q  # windows and ALiBi put the last query at the last key
    each = -(-len_k // num_splits)  # keys of a split; the last splits may have none

    out = torch.empty(batch, heads, len_q, value.shape[3], dtype=dtype, device=device)
    lse = torch.empty(batch, heads, len_q, dtype=stats, device=device)
    for start_m in range(0, len_q, BLOCK_M):
        rows = slice(start_m, min(start_m + BLOCK_M, len_q))
        q = query[:, :, rows].to(stats)
        # Blocks that no query sees, right of the diagonal or outside the window, are never visited.
        begin = max(0, rows.start + shift - left) if left >= 0 else 0
        end = min(len_k, rows.stop) if is_causal else len_k
        if right >= 0:
            end = min(end, rows.stop + shift + right)
        parts: list[State] = []
        for split in range(num_splits):
            m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=stats, device=device)
            l_i = torch.zeros_like(m_i)
            acc = torch.zeros(*q.shape[:3], value.shape[3], dtype=stats, device=device)
            if sinks is not None and split == 0:
                m_i = sinks.to(stats)[:, None, None].expand_as(m_i)
                l_i = torch.ones_like(m_i)

            first, last = split * each, min(len_k, (split + 1) * each)
            first += max(0, begin - first) // BLOCK_N * BLOCK_N
            starts = range(first, min(end, last), BLOCK_N)
            for start_n in starts if order == "forward" else reversed(starts):
                cols = slice(start_n, min(start_n + BLOCK_N, last))
                k, v = key[:, :, cols].to(stats), value[:, :, cols].to(stats)
                s = (q @ k.transpose(-1, -2)) * sm_scale
                place = torch.arange(rows.start, rows.stop, device=device)[:, None] + shift
                offset = torch.arange(cols.start, cols.stop, device=device) - place
                if softcap:
                    s = softcap * torch.tanh(s / softcap)
                if alibi_slopes is not None:
                    s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)
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
                if left >= 0:
                    s = s.masked_fill(offset < -left, -math.inf)
                if right >= 0:
                    s = s.masked_fill(offset > right, -math.inf)

                m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
                if rescale_threshold:
                    rises = m_new - m_i > rescale_threshold * math.log(2)
                    m_new = torch.where(rises, m_new, m_i)
                m_ref = m_new.masked_fill(m_new == -math.inf, 0.0)  # avoids inf - inf
                alpha = torch.exp(m_i - m_ref)
                if exp_degree is None:
                    p = torch.exp(s - m_ref)
                else:
                    p = exp2_polynomial.exp2((s - m_ref) * math.log2(math.e), exp_degree)
                l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)  # P before it is rounded
                acc = acc * alpha + p.to(dtype).to(stats) @ v
                m_i = m_new
            parts.append((m_i, l_i, acc))

        m_i, l_i, acc = reduce(merge, parts)
        out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)
        lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)  # log(0) is -inf
    return out, lse


def _kernel(contract: Contract = Contract(), **options: Any) -> Kernel:
    blocks: dict[str, dict[str, Any]] = {
        "64x64": {"BLOCK_M": 64, "BLOCK_N": 64},
        "16x32": {"BLOCK_M": 16, "BLOCK_N": 32},
        "128x16": {"BLOCK_M": 128, "BLOCK_N": 16},
        "32x128": {"BLOCK_M": 32, "BLOCK_N": 128},
        "16x16_reverse": {"BLOCK_M": 16, "BLOCK_N": 16, "order": "reverse"},
    }
    return Kernel(
        attention,
        dtypes=("float64", "float32", "float16", "bfloat16"),
        configs={name: {**block, **options} for name, block in blocks.items()},
        contract=contract,
    )


kernel = _kernel()
variants: dict[str, Kernel] = {
    f"exp2_poly{degree}": _kernel(
        Contract(exp_form="exp", exp_error=exp2_polynomial.error(degree)), exp_degree=degree
    )
    for degree in (3, 5)
}
variants["lazy_rescale"] = _kernel(Contract(rescale_threshold=8.0), rescale_threshold=8.0)
variants["bottom_right"] = bottom_right(kernel)
