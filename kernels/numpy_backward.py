"""The backward in NumPy, one block of keys at a time: what numpy_online's lse is kept for.

    P = exp(S - lse),  dV = P^T dO,  dP = dO V^T,  dS = P * (dP - delta),  delta_i = dO_i . O_i,
    dQ = sm_scale dS K,  dK = sm_scale dS^T Q.

The third line of the derivation is the softmax's own: dS_ij = P_ij (dP_ij - sum_k P_ik dP_ik),
whose sum over keys equals dO_i . O_i, so that no second pass is needed to form it. Everything
stays float32 (float64 for float64); each gradient is rounded once.
Source: Dao et al., *FlashAttention* (arXiv 2205.14135), appendix B.2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from flashcheck.kernel import Kernel

from .numpy_naive import to_array, to_tensor
from .numpy_online import attention as forward


class Attention(torch.autograd.Function):
    """numpy_online's forward pass with the backward above."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        BLOCK_N: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = forward(
            query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa, BLOCK_N=BLOCK_N,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.attn_mask, ctx.is_causal, ctx.scale, ctx.BLOCK_N = attn_mask, is_causal, scale, BLOCK_N
        return out, lse

    @staticmethod
    @np.errstate(all="ignore")
    def backward(ctx: Any, grad_out: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        query, key, value = ctx.saved_tensors[:3]
        q, k, v, out, lse = map(to_array, ctx.saved_tensors)
        do = to_array(grad_out)
        (batch, heads, len_q, head_dim), (_, kv_heads, len_k, _) = q.shape, k.shape
        group = heads // kv_heads  # query head h reads key head h // group
        sm_scale = q.dtype.type(1 / math.sqrt(head_dim) if ctx.scale is None else ctx.scale)
        if ctx.attn_mask is not None:
            additive = ctx.attn_mask.dtype != torch.bool
            mask = to_array(ctx.attn_mask) if additive else ctx.attn_mask.cpu().numpy()
            mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))

        delta = (do * out).sum(axis=-1, keepdims=True)
        lse_ref = np.where(lse == -np.inf, 0, lse)[..., None]  # a row that sees no key
        dq, dk, dv = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
        for start_n in range(0, len_k, ctx.BLOCK_N):
            cols = slice(start_n, min(start_n + ctx.BLOCK_N, len_k))
            k_j, v_j = (np.repeat(x[:, :, cols], group, axis=1) for x in (k, v))
            s = (q @ k_j.swapaxes(-1, -2)) * sm_scale
            if ctx.attn_mask is not None:
                block = mask[..., cols].astype(s.dtype) if additive else mask[..., cols]
                s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)
            if ctx.is_causal:  # aligned top-left: query i sees key j where j <= i
                visible = np.arange(cols.start, cols.stop) <= np.arange(len_q)[:, None]
                s = np.where(visible, s, -np.inf).astype(q.dtype)
            p = np.exp(s - lse_ref)
            ds = p * (do @ v_j.swapaxes(-1, -2) - delta)
            dq += ds @ k_j
            # One product sums over the rows of all query heads that read a key head.
            rows = (batch, kv_heads, group * len_q, -1)
            p, ds = p.reshape(*rows[:3], s.shape[-1]), ds.reshape(*rows[:3], s.shape[-1])
            dv[:, :, cols] = p.swapaxes(-1, -2) @ do.reshape(rows)
            dk[:, :, cols] = ds.swapaxes(-1, -2) @ q.reshape(rows)
        gradients = (
            to_tensor(dq * sm_scale, query), to_tensor(dk * sm_scale, key), to_tensor(dv, value),
        )  # fmt: skip
        return *gradients, None, None, None, None, None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    BLOCK_N: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
    result: tuple[torch.Tensor, torch.Tensor] = Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, attn_mask, is_causal, scale, enable_gqa, BLOCK_N
    )
    return result


kernel = Kernel(
    attention,
    dtypes=("float64", "float32", "float16", "bfloat16"),
    configs={"block_64": {"BLOCK_N": 64}, "block_1": {"BLOCK_N": 1}, "block_16": {"BLOCK_N": 16}},
)
