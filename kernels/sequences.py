"""Sequences: a packed batch or a paged cache as calls of attention, one for each sequence.

Each sequence is attention by itself: its first query and key have place 0, its ends are aligned
with each other, and one without keys gives out 0 and lse -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

Sequence = tuple[tuple[slice, ...], torch.Tensor, torch.Tensor]
"""Where a sequence lies in query, out and lse, its keys [1, Hkv, Lk, D] and values."""


def attend(
    alone: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    query: torch.Tensor,
    dim_v: int,
    sequences: Iterable[Sequence],
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, Lq, Dv] and lse [B, Hq, Lq] of `alone` on each of the sequences."""
    stats = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty(*query.shape[:3], dim_v)
    lse = query.new_empty(query.shape[:3], dtype=stats)
    for at, key, value in sequences:
        out[at], lse[at] = alone(query[at], key, value)
    return out, lse


def check(
    attn_mask: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    num_splits: int = 1,
) -> None:
    """Raises ValueError for options that exclude one another, that come in pairs, and for no
    splits."""
    if num_splits < 1:
        raise ValueError(f"num_splits is {num_splits}; it must be 1 or more")
    packed, paged = cu_seqlens_q is not None, block_table is not None
    if packed != (cu_seqlens_k is not None) or paged != (cache_seqlens is not None):
        raise ValueError("cu_seqlens_q needs cu_seqlens_k, and block_table needs cache_seqlens")
    if packed + paged + (attn_mask is not None) > 1:
        raise ValueError("attn_mask, cu_seqlens and block_table exclude one another")
