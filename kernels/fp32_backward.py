"""FlashAttention's backward in PyTorch: weights recomputed from lse, block by block.

With P = exp(S - lse), dP = dO V^T and delta_i = sum_d dO_id O_id, one number a query,

    dS = P * (dP - delta),   dQ = sm_scale dS K,   dK = sm_scale dS^T Q,   dV = P^T dO.

Nothing of size Lq x Lk is stored: beside q, k, v and out the forward pass keeps lse alone, from
which a block of P costs one product and one exp. Query heads that share a key head each have a
part of its dK and dV, and the parts are summed. As on a GPU, sums are float32, P and dS are
rounded to the input dtype for the products that they feed, and each gradient is rounded once.

Scores are recomputed with every option that the forward pass had. A bias, ALiBi and what hides
keys change P alone; a softcap multiplies dS by its own derivative, 1 - tanh^2; a sink is in lse
already. What the options are given, attn_mask, alibi_slopes and sinks, gets no gradient.
Source: Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 2.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from flashcheck.kernel import Kernel

from .fp32_stats import attention as forward


class Attention(torch.autograd.Function):
    """fp32_stats' forward pass with the backward above."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = forward(query, key, value, **options)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.options = options
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, out, lse = ctx.saved_tensors
        dtype, stats = query.dtype, lse.dtype
        (batch, heads, len_q, head_dim), (_, kv_heads, len_k, _) = query.shape, key.shape
        options = ctx.options
        BLOCK_M, BLOCK_N = options["BLOCK_M"], options["BLOCK_N"]
        sm_scale = 1 / math.sqrt(head_dim) if options["scale"] is None else options["scale"]
        is_causal, softcap = options["is_causal"], options["softcap"]
        attn_mask, alibi_slopes = options["attn_mask"], options["alibi_slopes"]
        group = heads // kv_heads  # query head h reads key head h // group
        if attn_mask is not None:
            attn_mask = attn_mask.expand(batch, heads, len_q, len_k)
        left, right = options["window_size"]
        shift = len_k - len_q  # windows and ALiBi put the last query at the last key

        delta = (grad_out.to(stats) * out.to(stats)).sum(dim=-1, keepdim=True)
        lse_ref = lse.masked_fill(lse == -math.inf, 0.0)[..., None]  # a row that sees no key
        dq = torch.zeros(query.shape, dtype=stats, device=query.device)
        dk = torch.zeros(batch, heads, len_k, head_dim, dtype=stats, device=query.device)
        dv = torch.zeros(*dk.shape[:3], value.shape[3], dtype=stats, device=query.device)
        for start_n in range(0, len_k, BLOCK_N):
            cols = slice(start_n, min(start_n + BLOCK_N, len_k))
            k = key[:, :, cols].to(stats).repeat_interleave(group, dim=1)
            v = value[:, :, cols].to(stats).repeat_interleave(group, dim=1)

            # Blocks of queries that see none of these keys, before the diagonal or outside the
            # window, are never visited.
            begin, end = 0, len_q
            if is_causal:
                begin = start_n
            if right >= 0:
                begin = max(begin, cols.start - shift - right)
            if left >= 0:
                end = min(end, cols.stop - shift + left)
            for start_m in range(begin // BLOCK_M * BLOCK_M, end, BLOCK_M):
                rows = slice(start_m, min(start_m + BLOCK_M, len_q))
                q, do = query[:, :, rows].to(stats), grad_out[:, :, rows].to(stats)
                s = (q @ k.transpose(-1, -2)) * sm_scale
                place = torch.arange(rows.start, rows.stop, device=query.device)[:, None] + shift
                offset = torch.arange(cols.start, cols.stop, device=query.device) - place
                if softcap:
                    s = softcap * torch.tanh(s / softcap)
                    slope = 1 - (s / softcap) ** 2  # of the capped score, before others join it
                if alibi_slopes is not None:
                    s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)
                if attn_mask is not None:
                    mask = attn_mask[:, :, rows, cols]
                    if mask.dtype == torch.bool:
                        s = s.masked_fill(~mask, -math.inf)
                    else:
                        s = s + mask.to(stats)
                if is_causal:  # aligned top-left: query i sees key j where j <= i
                    i = torch.arange(rows.start, rows.stop, device=query.device)[:, None]
                    j = torch.arange(cols.start, cols.stop, device=query.device)
                    s = s.masked_fill(j > i, -math.inf)
                if left >= 0:
                    s = s.masked_fill(offset < -left, -math.inf)
                if right >= 0:
                    s = s.masked_fill(offset > right, -math.inf)

                p = torch.exp(s - lse_ref[:, :, rows])
                dp = do @ v.transpose(-1, -2)
                ds = p * (dp - delta[:, :, rows])
                if softcap:
                    ds = ds * slope
                p, ds = p.to(dtype).to(stats), ds.to(dtype).to(stats)
                dv[:, :, cols] += p.transpose(-1, -2) @ do
                dk[:, :, cols] += ds.transpose(-1, -2) @ q
                dq[:, :, rows] += ds @ k

        dq, dk = dq * sm_scale, dk * sm_scale
        dk = dk.unflatten(1, (kv_heads, group)).sum(dim=2)
        dv = dv.unflatten(1, (kv_heads, group)).sum(dim=2)
        gradients = (dq.to(dtype), dk.to(dtype), dv.to(dtype))
        return *gradients, None


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
    BLOCK_M: int = 64,
    BLOCK_N: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
    options = {
        "attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa,
        "window_size": window_size, "softcap": softcap, "alibi_slopes": alibi_slopes,
        "sinks": sinks, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N,
    }  # fmt: skip
    result: tuple[torch.Tensor, torch.Tensor] = Attention.apply(  # type: ignore[no-untyped-call]
        query, key, value, options
    )
    return result


kernel = Kernel(
    attention,
    dtypes=("float64", "float32", "float16", "bfloat16"),
    configs={
        "64x64": {"BLOCK_M": 64, "BLOCK_N": 64},
        "16x32": {"BLOCK_M": 16, "BLOCK_N": 32},
        "32x16": {"BLOCK_M": 32, "BLOCK_N": 16},
    },
)
