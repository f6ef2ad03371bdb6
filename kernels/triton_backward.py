"""FlashAttention's backward pass in Triton, behind triton_flash's forward pass.

From lse, one number a query, the weights of any block are exp(S - lse), so that nothing of size
Lq x Lk is stored. Three kernels:

    delta  one number a query, sum_d dO_d O_d: what the softmax's own normalization takes off
    dkv    a program owns BLOCK_N keys and passes over the queries that see them, those of all
           query heads of its key head, so that their parts of dK and dV are summed in registers
    dq     a program owns BLOCK_M queries and passes over the keys that they see

with P = exp(S - lse), dS = P * (dO V^T - delta), dV = P^T dO, dK = sm_scale dS^T Q and
dQ = sm_scale dS K. Nothing is added to memory by two programs, so that equal calls give equal
bits. Sums are float32; P and dS are rounded to the input dtype, as tensor cores want them.

Both passes recompute S with every option that the forward pass had. A bias, ALiBi and what hides
keys change P alone; a softcap multiplies dS by its own derivative, 1 - tanh^2; a sink is in lse
already. Blocks beyond the diagonal or outside the window are never loaded. What the options are
given, attn_mask, alibi_slopes and sinks, gets no gradient.
Source: Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from flashcheck.kernel import Kernel

from .triton_flash import attention as forward
from .triton_flash import is_aligned, tanh, unaligned


@triton.jit
def _delta(
    Out, DO, Delta, stride_oz, stride_oh, stride_om, stride_od,
    H, len_q, num_blocks_m, head_dim_v, BLOCK_M: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) % num_blocks_m
    off_hz = (tl.program_id(0) // num_blocks_m).to(tl.int64)
    m = (start_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]).to(tl.int64)
    d = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    inside = (m < len_q) & (d < head_dim_v)
    out = tl.load(Out + (off_hz * len_q + m) * head_dim_v + d, mask=inside, other=0.0)
    do_ptrs = DO + off_hz // H * stride_oz + off_hz % H * stride_oh
    do = tl.load(do_ptrs + m * stride_om + d * stride_od, mask=inside, other=0.0)
    delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1)[:, None]
    tl.store(Delta + off_hz * len_q + m, delta, mask=m < len_q)


@triton.jit
def _p_and_ds(
    q, k, v, do, lse, delta, mask_ptrs, slope, offs_m, offs_n, sm_scale, softcap,
    window_left, window_right, len_q, len_k,
    HAS_MASK: tl.constexpr, HAS_SLOPE: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """P of a block, exp(S - lse), and dS: 0 for hidden keys and beyond the ends."""
    qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale
    if softcap is not None:
        capped = tanh(qk / softcap)
        qk = softcap * capped
    # Windows and ALiBi are aligned bottom-right: query i stands at key i + len_k - len_q.
    place = (offs_m + (len_k - len_q))[:, None]
    if HAS_SLOPE:
        qk -= slope * tl.abs(place - offs_n[None, :]).to(tl.float32)
    visible = (offs_m < len_q)[:, None] & (offs_n < len_k)[None, :]
    if IS_CAUSAL:  # aligned top-left: query i sees key j where j <= i
        visible &= offs_n[None, :] <= offs_m[:, None]
    if window_left is not None:
        visible &= offs_n[None, :] >= place - window_left
    if window_right is not None:
        visible &= offs_n[None, :] <= place + window_right
    if HAS_MASK:
        mask = tl.load(mask_ptrs, mask=visible, other=0)
        if mask.dtype == tl.int1:
            visible = mask
        else:
            qk += mask.to(tl.float32)
    qk = tl.where(visible, qk, float("-inf"))
    lse = tl.where(lse == float("-inf"), 0.0, lse)  # a row that sees no key
    p = tl.exp(qk - lse[:, None])
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = p * (dp - delta[:, None])
    if softcap is not None:
        ds *= 1.0 - capped * capped
    return p, ds


@triton.jit(do_not_specialize=("window_left", "window_right"))
def _dkv(
    Q, K, V, Mask, Slopes, DO, Lse, Delta, DK, DV, sm_scale, softcap, window_left, window_right,
    stride_qz, stride_qh, stride_qm, stride_qd,
    stride_kz, stride_kh, stride_kn, stride_kd,
    stride_vz, stride_vh, stride_vn, stride_vd,
    stride_mz, stride_mh, stride_mm, stride_mn,
    stride_oz, stride_oh, stride_om, stride_od,
    H, group, len_q, len_k, num_blocks_n, head_dim, head_dim_v,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    start_n = tl.program_id(0) % num_blocks_n * BLOCK_N
    off_hkvz = (tl.program_id(0) // num_blocks_n).to(tl.int64)
    off_z, off_hkv = off_hkvz // (H // group), off_hkvz % (H // group)
    cols = start_n + tl.arange(0, BLOCK_N)
    n = cols.to(tl.int64)[:, None]
    offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    inside_k = (n < len_k) & (offs_d < head_dim)
    inside_v = (n < len_k) & (offs_dv < head_dim_v)
    k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh + n * stride_kn + offs_d * stride_kd
    v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh + n * stride_vn + offs_dv * stride_vd
    k = tl.load(k_ptrs, mask=inside_k, other=0.0)
    v = tl.load(v_ptrs, mask=inside_v, other=0.0)
    dk = tl.full([BLOCK_N, BLOCK_D], 0.0, tl.float32)
    dv = tl.full([BLOCK_N, BLOCK_DV], 0.0, tl.float32)

    first_m = 0
    end_m = len_q
    shift = len_k - len_q
    if IS_CAUSAL:  # the blocks of queries before the first key see nothing here
        first_m = start_n // BLOCK_M * BLOCK_M
    if window_right is not None:  # nor those whose window ends before it
        first_m = tl.maximum(first_m, (start_n - shift - window_right) // BLOCK_M * BLOCK_M)
    if window_left is not None:  # nor those whose window begins after the last key
        last_n = tl.minimum(len_k, start_n + BLOCK_N) - 1
        end_m = tl.minimum(end_m, last_n - shift + window_left + 1)
    for g in range(group):
        off_h = off_hkv * group + g
        q_ptrs = Q + off_z * stride_qz + off_h * stride_qh
        do_ptrs = DO + off_z * stride_oz + off_h * stride_oh
        row = (off_z * H + off_h) * len_q
        slope = 0.0
        if Slopes is not None:
            slope = tl.load(Slopes + off_h)
        for start_m in range(first_m, end_m, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            m = offs_m.to(tl.int64)[:, None]
            rows = m < len_q
            q_mask, do_mask = rows & (offs_d < head_dim), rows & (offs_dv < head_dim_v)
            q = tl.load(q_ptrs + m * stride_qm + offs_d * stride_qd, mask=q_mask, other=0.0)
            do = tl.load(do_ptrs + m * stride_om + offs_dv * stride_od, mask=do_mask, other=0.0)
            lse = tl.load(Lse + row + offs_m, mask=offs_m < len_q, other=0.0)
            delta = tl.load(Delta + row + offs_m, mask=offs_m < len_q, other=0.0)
            mask_ptrs = Mask
            if Mask is not None:
                mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh
                mask_ptrs += m * stride_mm + cols.to(tl.int64)[None, :] * stride_mn
            p, ds = _p_and_ds(
                q, k, v, do, lse, delta, mask_ptrs, slope, offs_m, cols, sm_scale, softcap,
                window_left, window_right, len_q, len_k,
                Mask is not None, Slopes is not None, IS_CAUSAL,
            )  # fmt: skip
            dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")

    dk = dk * sm_scale
    row = off_hkvz * len_k + n
    tl.store(DK + row * head_dim + offs_d, dk.to(DK.dtype.element_ty), mask=inside_k)
    tl.store(DV + row * head_dim_v + offs_dv, dv.to(DV.dtype.element_ty), mask=inside_v)


@triton.jit(do_not_specialize=("window_left", "window_right"))
def _dq(
    Q, K, V, Mask, Slopes, DO, Lse, Delta, DQ, sm_scale, softcap, window_left, window_right,
    stride_qz, stride_qh, stride_qm, stride_qd,
    stride_kz, stride_kh, stride_kn, stride_kd,
    stride_vz, stride_vh, stride_vn, stride_vd,
    stride_mz, stride_mh, stride_mm, stride_mn,
    stride_oz, stride_oh, stride_om, stride_od,
    H, group, len_q, len_k, num_blocks_m, head_dim, head_dim_v,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) % num_blocks_m * BLOCK_M
    off_hz = (tl.program_id(0) // num_blocks_m).to(tl.int64)
    off_z, off_h = off_hz // H, off_hz % H
    off_hkv = off_h // group  # `group` query heads share one head of keys and values
    offs_m = start_m + tl.arange(0, BLOCK_M)
    m = offs_m.to(tl.int64)[:, None]
    rows = m < len_q
    offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)
    offs_dv = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    q_ptrs = Q + off_z * stride_qz + off_h * stride_qh + m * stride_qm + offs_d * stride_qd
    do_ptrs = DO + off_z * stride_oz + off_h * stride_oh + m * stride_om + offs_dv * stride_od
    k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh
    v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh
    q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)
    do = tl.load(do_ptrs, mask=rows & (offs_dv < head_dim_v), other=0.0)
    lse = tl.load(Lse + off_hz * len_q + offs_m, mask=offs_m < len_q, other=0.0)
    delta = tl.load(Delta + off_hz * len_q + offs_m, mask=offs_m < len_q, other=0.0)
    dq = tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)
    slope = 0.0
    if Slopes is not None:
        slope = tl.load(Slopes + off_h)

    begin_n = 0
    end_n = len_k
    shift = len_k - len_q
    if IS_CAUSAL:
        end_n = tl.minimum(len_k, start_m + BLOCK_M)
    if window_right is not None:
        last_m = tl.minimum(len_q, start_m + BLOCK_M) - 1
        end_n = tl.minimum(end_n, last_m + shift + window_right + 1)
    if window_left is not None:
        begin_n = tl.maximum(0, start_m + shift - window_left) // BLOCK_N * BLOCK_N
    for start_n in range(begin_n, end_n, BLOCK_N):
        cols = start_n + tl.arange(0, BLOCK_N)
        n = cols.to(tl.int64)[:, None]
        k_mask, v_mask = (n < len_k) & (offs_d < head_dim), (n < len_k) & (offs_dv < head_dim_v)
        k = tl.load(k_ptrs + n * stride_kn + offs_d * stride_kd, mask=k_mask, other=0.0)
        v = tl.load(v_ptrs + n * stride_vn + offs_dv * stride_vd, mask=v_mask, other=0.0)
        mask_ptrs = Mask
        if Mask is not None:
            mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh
            mask_ptrs += m * stride_mm + cols.to(tl.int64)[None, :] * stride_mn
        _, ds = _p_and_ds(
            q, k, v, do, lse, delta, mask_ptrs, slope, offs_m, cols, sm_scale, softcap,
            window_left, window_right, len_q, len_k,
            Mask is not None, Slopes is not None, IS_CAUSAL,
        )  # fmt: skip
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")

    dq = dq * sm_scale
    dq_ptrs = DQ + (off_hz * len_q + m) * head_dim + offs_d
    tl.store(dq_ptrs, dq.to(DQ.dtype.element_ty), mask=rows & (offs_d < head_dim))


# Tensors that are not aligned share one kernel: their strides and addresses would have hundreds.
_dkv_unaligned, _dq_unaligned = unaligned(_dkv), unaligned(_dq)


class Attention(torch.autograd.Function):
    """triton_flash's forward pass with the backward above."""

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
        batch, heads, len_q, head_dim = query.shape
        kv_heads, len_k, head_dim_v = value.shape[1:]
        options = ctx.options
        BLOCK_D, BLOCK_DV = (max(16, triton.next_power_of_2(n)) for n in (head_dim, head_dim_v))
        # Of wide heads larger tiles do not fit a multiprocessor's shared memory: 16 KiB each do.
        most = max(16, 2**14 // (max(BLOCK_D, BLOCK_DV) * query.element_size()))
        BLOCK_M, BLOCK_N = (min(options[side], most) for side in ("BLOCK_M", "BLOCK_N"))
        scale, window_size, slopes = (options[x] for x in ("scale", "window_size", "alibi_slopes"))
        sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
        # Wider than all keys and queries is as wide as they are, and cannot overflow.
        left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
        mask, strides = options["attn_mask"], (0, 0, 0, 0)
        if mask is not None:
            mask = mask.expand(batch, heads, len_q, len_k)  # a stride of 0 where it repeats
            strides = mask.stride()
        num_blocks_m = triton.cdiv(len_q, BLOCK_M)
        num_blocks_n = triton.cdiv(len_k, BLOCK_N)

        delta = torch.empty_like(lse)
        _delta[(num_blocks_m * batch * heads,)](
            out, grad_out, delta, *grad_out.stride(), heads, len_q, num_blocks_m, head_dim_v,
            BLOCK_M=BLOCK_M, BLOCK_DV=BLOCK_DV,
        )  # fmt: skip
        slopes = None if slopes is None else slopes.contiguous()
        inputs = query, key, value, mask, slopes, grad_out, lse, delta
        numbers = sm_scale, options["softcap"] or None, left, right
        steps = *query.stride(), *key.stride(), *value.stride(), *strides, *grad_out.stride()
        sizes = heads, heads // kv_heads, len_q, len_k
        blocks = {"BLOCK_D": BLOCK_D, "BLOCK_DV": BLOCK_DV}
        blocks |= {"IS_CAUSAL": options["is_causal"], "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
        # Warps may share a row, along which nothing is summed here. float32 has no tensor cores:
        # more threads, so that registers suffice. One stage, for shared memory.
        blocks |= {"num_warps": 16 if query.dtype == torch.float32 else 4, "num_stages": 1}
        aligned = all(map(is_aligned, (query, key, value, grad_out)))
        pass_dq, pass_dkv = (_dq, _dkv) if aligned else (_dq_unaligned, _dkv_unaligned)
        dq = dk = dv = None
        if ctx.needs_input_grad[0]:
            dq = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            pass_dq[(num_blocks_m * batch * heads,)](
                *inputs, dq, *numbers, *steps, *sizes, num_blocks_m, head_dim, head_dim_v, **blocks
            )  # fmt: skip
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dk = torch.empty(key.shape, dtype=key.dtype, device=key.device)
            dv = torch.empty(value.shape, dtype=value.dtype, device=value.device)
            if num_blocks_n:  # a grid of no programs is refused
                pass_dkv[(num_blocks_n * batch * kv_heads,)](
                    *inputs, dk, dv, *numbers, *steps, *sizes, num_blocks_n, head_dim, head_dim_v,
                    **blocks,
                )  # fmt: skip
        return dq, dk, dv, None


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
    dtypes=("float32", "float16", "bfloat16"),
    configs={
        "64x64": {"BLOCK_M": 64, "BLOCK_N": 64},
        "32x16": {"BLOCK_M": 32, "BLOCK_N": 16},
        "16x32": {"BLOCK_M": 16, "BLOCK_N": 32},
    },
)
