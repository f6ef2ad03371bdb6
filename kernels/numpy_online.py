"""Online softmax in NumPy: one pass over K and V, block by block, O(D) state a row.

After each block a row holds its running maximum m_i, its normalizer l_i and its
unnormalized output acc, all referenced to m_i. A block that raises the maximum rescales
both by alpha = exp(m_i - m_new), so that at the end acc / l_i is softmax attention exactly.
Splits of the keys are passed over one by one, and their states merged; a sink is one state more.
Source: Milakov and Gimelshein, *Online normalizer calculation for softmax*
(arXiv 1805.02867); Dao et al., *FlashAttention* (arXiv 2205.14135), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import torch

from flashcheck.kernel import Kernel

from .bottom_right import bottom_right
from .merge import State, merge
from .numpy_naive import to_array, to_tensor
from .sequences import Sequence, attend, check


def packed(key: torch.Tensor, value: torch.Tensor, cu_q: Any, cu_k: Any) -> Iterator[Sequence]:
    """The sequences that lie one after another along L."""
    ends = (cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])
    for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True):
        rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
        yield (slice(None), slice(None), rows), key[:, :, cols], value[:, :, cols]


def paged(key: torch.Tensor, value: torch.Tensor, table: Any, lengths: Any) -> Iterator[Sequence]:
    """The sequences of a cache [pages, page size, Hkv, D], each key by its page and place there."""
    size = key.shape[1]
    for b, len_k in enumerate(lengths.tolist()):
        j = torch.arange(len_k, device=key.device)
        page, place = table[b, j // size].long(), j % size
        k, v = (pool[page, place].transpose(0, 1)[None] for pool in (key, value))
        yield (slice(b, b + 1),), k, v


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
    num_splits: int = 1,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    block_table: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | None = None,
    BLOCK_N: int = 64,
    order: Literal["forward", "reverse"] = "forward",
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse.

    max_seqlen_q and max_seqlen_k, by which a GPU's grid is sized, are not needed.
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
            num_splits=num_splits, BLOCK_N=BLOCK_N, order=order,
        )  # fmt: skip
        return attend(alone, query, value.shape[3], sequences)

    q, k, v = to_array(query), to_array(key), to_array(value)
    if enable_gqa:  # query head h reads key head h // (Hq // Hkv)
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    batch, heads, len_q, _ = q.shape
    len_k = k.shape[2]
    if attn_mask is not None:
        additive = attn_mask.dtype != torch.bool
        mask = to_array(attn_mask).astype(q.dtype) if additive else attn_mask.cpu().numpy()
        mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))

    left, right = window_size
    shift = len_k - len_q  # windows and ALiBi put the last query at the last key
    begin = max(0, shift - left) if left >= 0 else 0  # the first key that any query sees
    each = -(-len_k // num_splits)  # keys of a split; the last splits may have none
    parts: list[State] = []
    for split in range(num_splits):
        m_i = np.full((batch, heads, len_q, 1), -np.inf, q.dtype)
        l_i = np.zeros((batch, heads, len_q, 1), q.dtype)
        acc = np.zeros((batch, heads, len_q, v.shape[-1]), q.dtype)

        first, last = split * each, min(len_k, (split + 1) * each)
        first += max(0, begin - first) // BLOCK_N * BLOCK_N
        starts = range(first, last, BLOCK_N)
        for start_n in starts if order == "forward" else reversed(starts):
            end_n = min(start_n + BLOCK_N, last)
            s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
            offset = np.arange(start_n, end_n) - np.arange(len_q)[:, None] - shift
            if softcap:
                s = softcap * np.tanh(s / softcap)
            if alibi_slopes is not None:
                slopes = to_array(alibi_slopes).astype(q.dtype)[:, None, None]
                s = s - slopes * np.abs(offset).astype(q.dtype)
            if attn_mask is not None:
                block = mask[..., start_n:end_n]
                s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)
            if is_causal:  # aligned top-left: query i sees key j where j <= i
                visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]
                s = np.where(visible, s, -np.inf).astype(q.dtype)
            if left >= 0:
                s = np.where(offset >= -left, s, -np.inf).astype(q.dtype)
            if right >= 0:
                s = np.where(offset <= right, s, -np.inf).astype(q.dtype)

            m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))
            m_ref = np.where(m_new == -np.inf, 0, m_new)  # no key seen yet: avoid inf - inf
            alpha = np.exp(m_i - m_ref)  # 0 until a first key is seen
            p = np.exp(s - m_ref)
            l_i = l_i * alpha + p.sum(axis=-1, keepdims=True)
            acc = acc * alpha + p @ v[:, :, start_n:end_n]
            m_i = m_new
        parts.append((m_i, l_i, acc))

    if sinks is not None:  # a key of weight exp(sink) and no value
        sink = np.broadcast_to(to_array(sinks).astype(q.dtype)[:, None, None], m_i.shape)
        parts.append((sink, np.ones_like(l_i), np.zeros_like(acc)))
    m_i, l_i, acc = reduce(merge, parts)
    out = acc / np.where(l_i == 0, 1, l_i)
    lse = (m_i + np.log(l_i))[..., 0]  # log(0) is -inf
    return to_tensor(out, query), torch.from_numpy(lse).to(query.device)


kernel = Kernel(
    attention,
    dtypes=("float64", "float32", "float16", "bfloat16"),
    configs={
        "block_64": {"BLOCK_N": 64},
        "block_1": {"BLOCK_N": 1},
        "block_16": {"BLOCK_N": 16},
        "block_128": {"BLOCK_N": 128},
        "block_16_reverse": {"BLOCK_N": 16, "order": "reverse"},
    },
)
variants: dict[str, Kernel] = {"bottom_right": bottom_right(kernel)}
