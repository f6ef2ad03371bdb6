"""FlashDecoding in Triton: the keys are split, so that few queries can fill a GPU too.

FlashAttention has one program for each block of queries of a head. While a model generates
there is one query, and a handful of programs would read a cache of a million keys. Here the
keys that a block sees are cut into `num_splits` parts, each read by a program of its own,
which leaves the state of the online softmax as it is, instead of dividing:

    m    the largest score of the split
    l    the sum of exp(score - m)
    acc  the sum of exp(score - m) * v

A second kernel merges the states of a row. Two of them become one as a block of keys joins the
running sums in FlashAttention: both are rescaled to the larger maximum. That is associative, and
(-inf, 0, 0), the state of no key, changes nothing, so a split may be empty or hidden. A sink
joins there once, as the state (sink, 1, 0).

The query heads of one head of keys and values are rows of one block: its keys are loaded once
for all of them, and a tensor core, which takes 16 rows, has more than one to work on.

Keys of a paged cache are looked up as they are loaded: key j of a sequence lies in the page
Table[sequence, j // page size], at j % page size. Of sequences that are packed along L each has
programs of its own, as many as the longest needs; those beyond its queries store nothing.

Sources: Dao, Haziza, Massa and Sizov, *Flash-Decoding for long-context inference* (2023);
Milakov and Gimelshein (arXiv 1805.02867), section 3.1.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from flashcheck.kernel import Kernel

from .sequences import check
from .triton_flash import is_aligned, tanh, unaligned


@triton.jit(
    do_not_specialize=(
        "H", "H_KV", "group", "len_q", "len_k", "num_blocks_m", "num_splits", "num_rows",
        "window_left", "window_right", "stride_mz", "stride_mh", "stride_mm", "stride_mn",
        "page_size", "stride_tz",
    ),
    do_not_specialize_on_alignment=("Mask", "Slopes", "EndsQ", "EndsK", "Table", "Lengths"),
)  # fmt: skip
def _attention_splits(
    Q, K, V, Mask, Slopes, EndsQ, EndsK, Table, Lengths, M, L, Acc, sm_scale, softcap,
    window_left, window_right,
    stride_qz, stride_qh, stride_qm, stride_qd,
    stride_kz, stride_kh, stride_kn, stride_kd,
    stride_vz, stride_vh, stride_vn, stride_vd,
    stride_mz, stride_mh, stride_mm, stride_mn,
    page_size, stride_tz, stride_kp, stride_vp,
    H, H_KV, group, len_q, len_k, num_blocks_m, num_splits, num_rows, head_dim, head_dim_v,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) % num_blocks_m
    split = tl.program_id(0) // num_blocks_m % num_splits
    off_hz = (tl.program_id(0) // num_blocks_m // num_splits).to(tl.int64)
    off_z, off_hkv = off_hz // H_KV, off_hz % H_KV
    first_part, heads_apart = off_z * H * len_q, len_q
    if EndsQ is not None:  # packed: off_z is the sequence
        first_q, first_k = tl.load(EndsQ + off_z), tl.load(EndsK + off_z)
        len_q, len_k = tl.load(EndsQ + off_z + 1) - first_q, tl.load(EndsK + off_z + 1) - first_k
        first_part = first_q.to(tl.int64)
    if Table is not None:
        len_k = tl.load(Lengths + off_z)

    # The rows are those of all `group` heads for query 0, then for query 1, and so on.
    offs_row = start_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_m = offs_row // group
    off_h = off_hkv * group + offs_row % group
    first_m = start_m * BLOCK_M // group
    last_m = tl.minimum(len_q, ((start_m + 1) * BLOCK_M - 1) // group + 1) - 1
    rows = offs_m < len_q

    # The keys that these queries see are cut into splits of whole blocks, the last ones empty.
    shift = len_k - len_q  # windows and ALiBi are aligned bottom-right
    begin_n = 0
    end_n = len_k
    if IS_CAUSAL:  # aligned top-left: query i sees key j where j <= i
        end_n = tl.minimum(len_k, last_m + 1)
    if window_right is not None:
        end_n = tl.minimum(end_n, last_m + shift + window_right + 1)
    if window_left is not None:
        begin_n = tl.maximum(0, first_m + shift - window_left) // BLOCK_N * BLOCK_N
    num_blocks_n = tl.cdiv(tl.maximum(end_n - begin_n, 0), BLOCK_N)
    len_split = tl.cdiv(num_blocks_n, num_splits) * BLOCK_N
    begin_n += split * len_split
    end_n = tl.minimum(end_n, begin_n + len_split)

    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)  # zero-padded to a power of two
    offs_dv = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    m, n, step_n = offs_m.to(tl.int64), offs_n.to(tl.int64), tl.full([], BLOCK_N, tl.int64)
    n += begin_n
    if EndsQ is not None:
        Q += first_q.to(tl.int64) * stride_qm
        K += first_k.to(tl.int64) * stride_kn
        V += first_k.to(tl.int64) * stride_vn
    q_ptrs = Q + off_z * stride_qz + off_h * stride_qh
    k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh
    v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh
    q_ptrs += m * stride_qm + offs_d * stride_qd
    k_ptrs += n[:, None] * stride_kn + offs_d * stride_kd
    v_ptrs += n[:, None] * stride_vn + offs_dv * stride_vd
    if Mask is not None:
        mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh
        mask_ptrs += m * stride_mm
    if Slopes is not None:
        slope = tl.load(Slopes + off_h)

    q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_M], 0.0, tl.float32)
    acc = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)
    for start_n in range(begin_n, end_n, BLOCK_N):
        cols = start_n + offs_n
        if Table is not None:
            pages = Table + off_z * stride_tz + cols // page_size
            page = tl.load(pages, mask=cols < len_k, other=0).to(tl.int64)[:, None]
            place = (cols % page_size).to(tl.int64)[:, None]
            k_ptrs = K + page * stride_kp + off_hkv * stride_kh
            k_ptrs += place * stride_kn + offs_d * stride_kd
            v_ptrs = V + page * stride_vp + off_hkv * stride_vh
            v_ptrs += place * stride_vn + offs_dv * stride_vd
        k = tl.load(k_ptrs, mask=(cols < len_k)[:, None] & (offs_d < head_dim), other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale
        if softcap is not None:
            qk = softcap * tanh(qk / softcap)
        if Slopes is not None:
            qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)

        visible = (cols < len_k)[None, :]
        if IS_CAUSAL:
            visible &= cols[None, :] <= offs_m
        if window_left is not None:
            visible &= cols[None, :] >= offs_m + shift - window_left
        if window_right is not None:
            visible &= cols[None, :] <= offs_m + shift + window_right
        if Mask is not None:
            mask = tl.load(mask_ptrs + n[None, :] * stride_mn, mask=visible & rows, other=0)
            if mask.dtype == tl.int1:
                visible = mask
            else:
                qk += mask.to(tl.float32)
            mask_ptrs += step_n * stride_mn
        qk = tl.where(visible, qk, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(qk, 1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key seen yet: avoid inf - inf
        alpha = tl.exp(m_i - m_ref)
        p = tl.exp(qk - m_ref[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < head_dim_v), other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_new
        k_ptrs += step_n * stride_kn
        v_ptrs += step_n * stride_vn

    offs_part = split.to(tl.int64) * num_rows + first_part + off_h * heads_apart + m
    tl.store(M + offs_part, m_i[:, None], mask=rows)
    tl.store(L + offs_part, l_i[:, None], mask=rows)
    tl.store(Acc + offs_part * head_dim_v + offs_dv, acc, mask=rows & (offs_dv < head_dim_v))


@triton.jit(
    do_not_specialize=("H", "len_q", "num_splits", "num_rows", "head_dim_v"),
    do_not_specialize_on_alignment=("Sinks",),
)
def _merge_splits(
    M, L, Acc, Sinks, Out, Lse, H, len_q, num_splits, num_rows, head_dim_v,
    BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_dv = tl.arange(0, BLOCK_DV)[None, :]
    rows, columns = offs_m < num_rows, offs_dv < head_dim_v
    m_i = tl.full([BLOCK_M, 1], float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_M, 1], 0.0, tl.float32)
    acc = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)
    if Sinks is not None:
        m_i = tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0)
        l_i += 1.0

    for split in range(num_splits):
        offs_part = tl.full([], split, tl.int64) * num_rows + offs_m
        m_split = tl.load(M + offs_part, mask=rows, other=0.0)
        l_split = tl.load(L + offs_part, mask=rows, other=0.0)
        part = tl.load(Acc + offs_part * head_dim_v + offs_dv, mask=rows & columns, other=0.0)
        m_new = tl.maximum(m_i, m_split)
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m_i - m_ref)
        beta = tl.exp(m_split - m_ref)
        l_i = l_i * alpha + l_split * beta
        acc = acc * alpha + part * beta
        m_i = m_new

    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # a row that saw no key: out is 0 and lse is -inf
    out = (acc / l_i).to(Out.dtype.element_ty)
    tl.store(Out + offs_m * head_dim_v + offs_dv, out, mask=rows & columns)
    tl.store(Lse + offs_m, m_i + tl.log(l_i), mask=rows)


# As in triton_flash: one kernel for aligned tensors, and one for all others.
_attention_splits_unaligned = unaligned(_attention_splits)


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
    BLOCK_M: int = 16,
    BLOCK_N: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
    check(attn_mask, cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens, num_splits)
    batch, heads, len_q, head_dim = query.shape
    if block_table is not None:  # [pages, page size, Hkv, D]
        key, value = key.transpose(1, 2), value.transpose(1, 2)
    len_k, head_dim_v = value.shape[2:]
    sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    group = heads // key.shape[1] if enable_gqa else 1
    stride_mask: tuple[int, ...] = (0, 0, 0, 0)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, len_q, len_k)  # a stride of 0 where it repeats
        stride_mask = attn_mask.stride()
    stride_q, stride_k, stride_v = query.stride(), key.stride(), value.stride()
    page_size, stride_page = len_k, (stride_k[0], stride_v[0])
    if block_table is not None:
        len_k = page_size * block_table.shape[1]
        stride_k, stride_v = (0, *stride_k[1:]), (0, *stride_v[1:])
    sequences, longest_q, longest_k = batch, len_q, len_k
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        sequences = len(cu_seqlens_q) - 1
        longest_q = int(cu_seqlens_q.diff().max()) if max_seqlen_q is None else max_seqlen_q
        longest_k = int(cu_seqlens_k.diff().max()) if max_seqlen_k is None else max_seqlen_k
        stride_q, stride_k, stride_v = ((0, *s[1:]) for s in (stride_q, stride_k, stride_v))
    # Wider than all keys and queries is as wide as they are, and cannot overflow.
    left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
    num_splits = max(1, min(num_splits, triton.cdiv(longest_k, BLOCK_N)))

    out = torch.empty(batch, heads, len_q, head_dim_v, dtype=query.dtype, device=query.device)
    lse = torch.empty(batch, heads, len_q, dtype=torch.float32, device=query.device)
    m, l = lse.new_empty(2, num_splits, batch, heads, len_q)
    acc = lse.new_empty(num_splits, batch, heads, len_q, head_dim_v)
    num_rows = batch * heads * len_q
    num_blocks_m = triton.cdiv(longest_q * group, BLOCK_M)
    block_dv = max(16, triton.next_power_of_2(head_dim_v))
    lengths = (cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens)
    aligned = all(map(is_aligned, (query, key, value)))
    splits = _attention_splits if aligned else _attention_splits_unaligned
    splits[(num_blocks_m * num_splits * sequences * (heads // group),)](
        query, key, value, attn_mask,
        None if alibi_slopes is None else alibi_slopes.contiguous(),
        *(None if n is None else n.contiguous() for n in lengths),
        m, l, acc, sm_scale, softcap or None, left, right,
        *stride_q, *stride_k, *stride_v, *stride_mask,
        page_size, 0 if block_table is None else block_table.shape[1], *stride_page,
        heads, heads // group, group, len_q, len_k, num_blocks_m, num_splits, num_rows,
        head_dim, head_dim_v,
        IS_CAUSAL=is_causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)), BLOCK_DV=block_dv,
        num_warps=4, num_stages=1 if query.dtype == torch.float32 else 2,
    )  # fmt: skip
    block_rows = 16
    _merge_splits[(triton.cdiv(num_rows, block_rows),)](
        m, l, acc, None if sinks is None else sinks.contiguous(), out, lse,
        heads, len_q, num_splits, num_rows, head_dim_v, BLOCK_M=block_rows, BLOCK_DV=block_dv,
    )  # fmt: skip
    return out, lse


kernel = Kernel(
    attention,
    dtypes=("float32", "float16", "bfloat16"),
    configs={
        "16x64": {"BLOCK_M": 16, "BLOCK_N": 64},
        "16x16": {"BLOCK_M": 16, "BLOCK_N": 16},
        "64x32": {"BLOCK_M": 64, "BLOCK_N": 32},
    },
)
