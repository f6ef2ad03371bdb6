"""FlashAttention's forward pass in Triton: compiled on a GPU, interpreted on a CPU.

Attention is softmax(q k^T * sm_scale) v. Written step by step, it stores a matrix of
Lq x Lk scores for each head, reads it for the softmax, stores the weights and reads them
again: 128 MiB a head for 8,192 tokens in half precision, and moving those bytes takes far
longer than computing them. FlashAttention does the same multiplications and never stores
a score. Each program owns BLOCK_M queries of one head and passes once over the keys and
values, BLOCK_N at a time, with everything in between in registers:

    m_i  the largest score so far
    l_i  the sum of exp(score - m_i) so far, the softmax's denominator
    acc  the sum of exp(score - m_i) * v so far, the output's numerator

A softmax seems to need the maximum of a whole row first. It does not: where a block raises
the maximum, alpha = exp(m_old - m_new) turns every exp(score - m_old) inside l_i and acc
into exp(score - m_new), which it would have been had the maximum been known from the start.
So acc / l_i, divided once at the end, is exact up to rounding. The only statistic stored is
lse = m_i + log(l_i), one number a query: from it the backward pass recomputes any weight as
exp(score - lse), again block by block.

Under a causal mask the loop ends at the diagonal, and in a window it begins at its left edge
and ends at its right: the blocks beyond are never loaded. Options that are not given are None
or False when the kernel is compiled, and cost nothing.

Scores, statistics and acc are float32. P is rounded to the dtype of v, as a tensor core
wants it, after l_i has summed it. Names are those of Triton's tutorial 06-fused-attention.
Sources: Dao et al. (arXiv 2205.14135); Dao (arXiv 2307.08691), algorithm 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from flashcheck.kernel import Contract, Kernel

from .bottom_right import bottom_right
from .exp2_polynomial import coefficients, error


@triton.jit
def tanh(x):
    """tanh by exp, which cannot overflow here: off by less than 10 float32 roundoffs of 1."""
    e = tl.exp(-2.0 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -t, t)


@triton.jit
def exp2(x, COEFFICIENTS: tl.constexpr):
    """2^x, below 2^-124 flushed to 0: a polynomial, the last coefficient first, of x - floor(x)."""
    n = tl.floor(tl.maximum(x, -124.0))
    f = tl.maximum(x, -124.0) - n
    p = tl.zeros_like(f)
    for i in tl.static_range(len(COEFFICIENTS)):
        p = p * f + COEFFICIENTS[i]
    scaled = p.to(tl.int32, bitcast=True) + (n.to(tl.int32) << 23)  # times 2^n, in the exponent
    return tl.where(x < -124.0, 0.0, scaled.to(tl.float32, bitcast=True))


@triton.jit(
    do_not_specialize=(
        "H", "group", "len_q", "len_k", "num_blocks_m", "window_left", "window_right",
        "stride_mz", "stride_mh", "stride_mm", "stride_mn",
    ),
    do_not_specialize_on_alignment=("Mask", "Slopes", "Sinks"),
)  # fmt: skip
def _attention_forward(
    Q, K, V, Mask, Slopes, Sinks, Out, Lse, sm_scale, softcap, window_left, window_right,
    stride_qz, stride_qh, stride_qm, stride_qd,
    stride_kz, stride_kh, stride_kn, stride_kd,
    stride_vz, stride_vh, stride_vn, stride_vd,
    stride_mz, stride_mh, stride_mm, stride_mn,
    H, group, len_q, len_k, num_blocks_m, head_dim, head_dim_v,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    EXP2: tl.constexpr = None, RESCALE_THRESHOLD: tl.constexpr = 0.0,
):  # fmt: skip
    # The blocks of one head run side by side, since they read the same keys and values.
    start_m = tl.program_id(0) % num_blocks_m
    off_hz = (tl.program_id(0) // num_blocks_m).to(tl.int64)  # tensors may pass 2^31 elements
    off_z, off_h = off_hz // H, off_hz % H
    off_hkv = off_h // group  # `group` query heads share one head of keys and values

    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)[None, :].to(tl.int64)  # zero-padded to a power of two
    offs_dv = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    m, n, step_n = offs_m.to(tl.int64), offs_n.to(tl.int64), tl.full([], BLOCK_N, tl.int64)
    q_ptrs = Q + off_z * stride_qz + off_h * stride_qh
    k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh
    v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh
    q_ptrs += m * stride_qm + offs_d * stride_qd
    k_ptrs += n[:, None] * stride_kn + offs_d * stride_kd
    v_ptrs += n[:, None] * stride_vn + offs_dv * stride_vd
    if Mask is not None:
        mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh
        mask_ptrs += m * stride_mm

    rows = offs_m < len_q
    q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_M], 0.0, tl.float32)
    if Sinks is not None:  # a key of that score, whose value is 0
        m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h)
        l_i += 1.0
    acc = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)

    # Windows and ALiBi are aligned bottom-right: query i stands at key i + shift.
    shift = len_k - len_q
    if Slopes is not None:
        slope = tl.load(Slopes + off_h)
    begin_n = 0
    end_n = len_k
    if IS_CAUSAL:  # aligned top-left: query i sees key j where j <= i
        end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)
    if window_right is not None:
        last_m = tl.minimum(len_q, (start_m + 1) * BLOCK_M) - 1
        end_n = tl.minimum(end_n, last_m + shift + window_right + 1)
    if window_left is not None:
        first_n = tl.maximum(0, start_m * BLOCK_M + shift - window_left)
        begin_n = first_n // BLOCK_N * BLOCK_N
        k_ptrs += begin_n.to(tl.int64) * stride_kn
        v_ptrs += begin_n.to(tl.int64) * stride_vn
        if Mask is not None:
            mask_ptrs += begin_n.to(tl.int64) * stride_mn
    for start_n in range(begin_n, end_n, BLOCK_N):
        cols = start_n + offs_n
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
        if RESCALE_THRESHOLD > 0.0:  # octaves; times log(2), rounded down
            m_new = tl.where(m_new - m_i <= RESCALE_THRESHOLD * 0.693147, m_i, m_new)
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key seen yet: avoid inf - inf
        alpha = tl.exp(m_i - m_ref)
        if EXP2 is None:
            p = tl.exp(qk - m_ref[:, None])
        else:
            p = exp2((qk - m_ref[:, None]) * 1.4426950408889634, EXP2)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < head_dim_v), other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_new
        k_ptrs += step_n * stride_kn
        v_ptrs += step_n * stride_vn

    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # a row that saw no key: out is 0 and lse is -inf
    out = (acc / l_i[:, None]).to(Out.dtype.element_ty)
    lse = (m_i + tl.log(l_i))[:, None]
    offs_out = off_hz * len_q + m
    tl.store(Out + offs_out * head_dim_v + offs_dv, out, mask=rows & (offs_dv < head_dim_v))
    tl.store(Lse + offs_out, lse, mask=rows)


def unaligned(kernel: Any) -> Any:
    """The kernel, compiled for any integers and addresses: its arguments before IS_CAUSAL.

    Triton compiles anew for each pattern of integers that are 1 or divisible by 16. Aligned tensors
    have one pattern and load several times faster for it. All the others have hundreds and gain
    little.
    """
    names = kernel.arg_names
    return triton.jit(kernel.fn, do_not_specialize=names[: names.index("IS_CAUSAL")])


_attention_forward_unaligned = unaligned(_attention_forward)


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 elements."""
    *strides, last = tensor.stride()
    steps = (*strides, tensor.shape[-1], tensor.data_ptr())
    return last == 1 and all(step % 16 == 0 for step in steps)


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
    BLOCK_M: int = 128,
    BLOCK_N: int = 64,
    num_stages: int = 2,
    exp_degree: int | None = None,
    rescale_threshold: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse.

    exp_degree         of the polynomial that makes P; None: the exponential unit
    rescale_threshold  octaves by which the maximum may grow before the sums are rescaled
    """
    batch, heads, len_q, head_dim = query.shape
    len_k, head_dim_v = value.shape[2:]
    sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    group = heads // key.shape[1] if enable_gqa else 1
    stride_mask: tuple[int, ...] = (0, 0, 0, 0)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, len_q, len_k)  # a stride of 0 where it repeats
        stride_mask = attn_mask.stride()
    # Wider than all keys and queries is as wide as they are, and cannot overflow.
    left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)

    out = torch.empty(batch, heads, len_q, head_dim_v, dtype=query.dtype, device=query.device)
    lse = torch.empty(batch, heads, len_q, dtype=torch.float32, device=query.device)
    num_blocks_m = triton.cdiv(len_q, BLOCK_M)
    num_warps = BLOCK_M // 16  # a tensor core takes 16 rows, and no row is split between warps
    if query.dtype == torch.float32:  # no tensor cores: more threads, so that registers suffice
        num_warps, num_stages = 4 * num_warps, 1
    aligned = all(map(is_aligned, (query, key, value)))
    forward = _attention_forward if aligned else _attention_forward_unaligned
    # One axis for all: the other two of a CUDA grid end at 65,535.
    forward[(num_blocks_m * batch * heads,)](
        query, key, value, attn_mask,
        None if alibi_slopes is None else alibi_slopes.contiguous(),
        None if sinks is None else sinks.contiguous(),
        out, lse, sm_scale, softcap or None, left, right,
        *query.stride(), *key.stride(), *value.stride(), *stride_mask,
        heads, group, len_q, len_k, num_blocks_m, head_dim, head_dim_v,
        IS_CAUSAL=is_causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_DV=max(16, triton.next_power_of_2(head_dim_v)),
        EXP2=None if exp_degree is None else coefficients(exp_degree)[::-1],
        RESCALE_THRESHOLD=float(rescale_threshold),
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return out, lse


_BLOCKS: dict[str, dict[str, Any]] = {
    "128x64": {"BLOCK_M": 128, "BLOCK_N": 64},
    "16x16": {"BLOCK_M": 16, "BLOCK_N": 16},
    "32x64": {"BLOCK_M": 32, "BLOCK_N": 64},
    "64x32": {"BLOCK_M": 64, "BLOCK_N": 32, "num_stages": 3},
}


def _kernel(contract: Contract = Contract(), **options: float) -> Kernel:
    return Kernel(
        attention,
        dtypes=("float32", "float16", "bfloat16"),
        configs={name: blocks | options for name, blocks in _BLOCKS.items()},
        contract=contract,
    )


kernel = _kernel()
variants: dict[str, Kernel] = {
    **{
        f"exp2_poly{degree}": _kernel(
            Contract(exp_form="exp", exp_error=error(degree)), exp_degree=degree
        )
        for degree in (3, 5)
    },
    "lazy_rescale": _kernel(Contract(rescale_threshold=8.0), rescale_threshold=8.0),
    "bottom_right": bottom_right(kernel),
}
"""FlashAttention-4's polynomial for P, its maximum that may lag; is_causal aligned at the end."""
