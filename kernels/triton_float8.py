"""FlashAttention-3's float8 arithmetic in Triton: both products are of float8 operands.

`fp32_float8` says what the factors and P_OFFSET are for. Here a program owns BLOCK_M queries
of one head. A query and a key load their own factors; the keys of a block share that of their
values, which multiplies P.V after the tensor core has summed it: in P, before it is rounded, it
would saturate or underflow. Each block's P.V is promoted to float32 by that multiplication, so
that no more than BLOCK_N products meet in the 13 bits that a float8 tensor core of Hopper keeps.
(Blocks of fewer than 64 queries are computed by its float16 tensor core, which keeps more.)
Sources: Shah et al., *FlashAttention-3* (arXiv 2407.08608), section 3.3; `triton_flash`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from flashcheck.kernel import Contract, Kernel

DESCALE_M, DESCALE_N = 16, 32
"""Queries and keys that share a factor, where factors are per block."""

P_OFFSET = 8
"""Octaves by which P is enlarged: 2^8 is the largest power of two below 448, e4m3's largest."""


@triton.jit(
    do_not_specialize=(
        "H", "group", "len_q", "len_k", "num_blocks_m", "head_dim", "head_dim_v",
        "stride_qz", "stride_qh", "stride_qm", "stride_qd",
        "stride_kz", "stride_kh", "stride_kn", "stride_kd",
        "stride_vz", "stride_vh", "stride_vn", "stride_vd",
        "stride_mz", "stride_mh", "stride_mm", "stride_mn",
        "stride_qsz", "stride_qsh", "stride_qsm",
        "stride_ksz", "stride_ksh", "stride_ksn", "stride_vsz", "stride_vsh", "stride_vsn",
    ),
    do_not_specialize_on_alignment=("Q", "K", "V", "Mask", "QScale", "KScale", "VScale"),
)  # fmt: skip
def _attention_forward(
    Q, K, V, QScale, KScale, VScale, Mask, Out, Lse, sm_scale,
    stride_qz, stride_qh, stride_qm, stride_qd,
    stride_kz, stride_kh, stride_kn, stride_kd,
    stride_vz, stride_vh, stride_vn, stride_vd,
    stride_qsz, stride_qsh, stride_qsm,
    stride_ksz, stride_ksh, stride_ksn,
    stride_vsz, stride_vsh, stride_vsn,
    stride_mz, stride_mh, stride_mm, stride_mn,
    H, group, len_q, len_k, num_blocks_m, head_dim, head_dim_v,
    IS_CAUSAL: tl.constexpr, OFFSET: tl.constexpr, PER_M: tl.constexpr, PER_N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0) % num_blocks_m
    off_hz = (tl.program_id(0) // num_blocks_m).to(tl.int64)  # tensors may pass 2^31 elements
    off_z, off_h = off_hz // H, off_hz % H
    off_hkv = off_h // group  # `group` query heads share one head of keys, values and factors

    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # zero-padded to a power of two
    offs_dv = tl.arange(0, BLOCK_DV)[None, :].to(tl.int64)
    m = offs_m.to(tl.int64)
    q_ptrs = Q + off_z * stride_qz + off_h * stride_qh + m * stride_qm
    k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh + offs_d[:, None] * stride_kd
    v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh + offs_dv * stride_vd
    ks_ptrs = KScale + off_z * stride_ksz + off_hkv * stride_ksh
    vs_ptrs = VScale + off_z * stride_vsz + off_hkv * stride_vsh
    qs_ptrs = QScale + off_z * stride_qsz + off_hkv * stride_qsh + m // PER_M * stride_qsm

    rows = offs_m < len_q
    q_ptrs += offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim)[None, :], other=0.0)
    q_scale = tl.load(qs_ptrs, mask=rows, other=0.0) * sm_scale
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_M], 0.0, tl.float32)
    acc = tl.full([BLOCK_M, BLOCK_DV], 0.0, tl.float32)

    end_n = len_k
    if IS_CAUSAL:  # aligned top-left: query i sees key j where j <= i
        end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)
    for start_n in range(0, end_n, BLOCK_N):
        cols = start_n + offs_n
        n = cols.to(tl.int64)
        visible = cols < len_k
        k = tl.load(k_ptrs + n * stride_kn, mask=visible & (offs_d < head_dim)[:, None], other=0.0)
        k_scale = tl.load(ks_ptrs + n // PER_N * stride_ksn, mask=visible, other=0.0)
        qk = tl.dot(q, k) * (q_scale * k_scale)
        if IS_CAUSAL:
            visible &= cols <= offs_m
        if Mask is not None:
            mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh
            mask_ptrs += m * stride_mm + n * stride_mn
            mask = tl.load(mask_ptrs, mask=visible & rows, other=0)
            if mask.dtype == tl.int1:
                visible = mask
            else:
                qk += mask
        qk = tl.where(visible, qk, float("-inf"))

        m_new = tl.maximum(m_i, tl.max(qk, 1))
        m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)  # no key seen yet: avoid inf - inf
        alpha = tl.exp(m_i - m_ref)
        p = tl.exp2((qk - m_ref[:, None]) * 1.4426950408889634 + OFFSET)
        l_i = l_i * alpha + tl.sum(p, 1)
        n = (start_n + tl.arange(0, BLOCK_N)[:, None]).to(tl.int64)
        v = tl.load(v_ptrs + n * stride_vn, mask=(n < len_k) & (offs_dv < head_dim_v), other=0.0)
        v_scale = tl.load(vs_ptrs + start_n // PER_N * stride_vsn)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v) * v_scale
        m_i = m_new

    l_i = tl.where(l_i == 0.0, 1.0, l_i)  # a row that saw no key: out is 0 and lse is -inf
    out = (acc / l_i[:, None]).to(Out.dtype.element_ty)
    lse = (m_i + tl.log(l_i) - OFFSET * 0.6931471805599453)[:, None]
    offs_out = off_hz * len_q + m
    tl.store(Out + offs_out * head_dim_v + offs_dv, out, mask=rows & (offs_dv < head_dim_v))
    tl.store(Lse + offs_out, lse, mask=rows)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    BLOCK_M: int = 64,
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse.

    q_descale, k_descale, v_descale   [B, Hkv] or [B, Hkv, blocks]; None is 1
    """
    device, fp32 = query.device, torch.float32
    batch, heads, len_q, head_dim = query.shape
    len_k, head_dim_v = value.shape[2:]
    sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
    group = heads // key.shape[1] if enable_gqa else 1
    stride_mask: tuple[int, ...] = (0, 0, 0, 0)
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:  # Triton computes nothing in float8
            attn_mask = attn_mask.to(fp32)
        attn_mask = attn_mask.expand(batch, heads, len_q, len_k)  # a stride of 0 where it repeats
        stride_mask = attn_mask.stride()
    one = torch.ones(1, 1, dtype=fp32, device=device).expand(batch, key.shape[1])
    factors = [one if given is None else given for given in (q_descale, k_descale, v_descale)]
    # One factor for a head is one for each of its blocks, by a stride of 0.
    strides = [(*factor.stride(), 0)[:3] for factor in factors]

    out = torch.empty(batch, heads, len_q, head_dim_v, dtype=out_dtype, device=device)
    lse = torch.empty(batch, heads, len_q, dtype=fp32, device=device)
    num_blocks_m = triton.cdiv(len_q, BLOCK_M)
    _attention_forward[(num_blocks_m * batch * heads,)](
        query, key, value, *factors, attn_mask, out, lse, sm_scale,
        *query.stride(), *key.stride(), *value.stride(),
        *(step for of_one in strides for step in of_one), *stride_mask,
        heads, group, len_q, len_k, num_blocks_m, head_dim, head_dim_v,
        IS_CAUSAL=is_causal, OFFSET=P_OFFSET, PER_M=DESCALE_M, PER_N=DESCALE_N,
        BLOCK_M=BLOCK_M, BLOCK_N=DESCALE_N,  # the keys of a block share their values' factor
        BLOCK_D=max(32, triton.next_power_of_2(head_dim)),  # a float8 tensor core takes 32
        BLOCK_DV=max(16, triton.next_power_of_2(head_dim_v)),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out, lse


kernel = Kernel(
    attention,
    dtypes=("float8_e4m3fn", "float8_e5m2"),
    descale_block=(DESCALE_M, DESCALE_N),
    configs={
        "64": {"BLOCK_M": 64},
        "16_float16": {"BLOCK_M": 16, "out_dtype": torch.float16},
    },
    # ex2.approx is within an ulp or two; interpreted, torch's or NumPy's exp2 is, too.
    contract=Contract(
        qk="e8m13", accumulator="e8m13", exp_error=8 * 2.0**-24, p_offset=float(P_OFFSET)
    ),
)
