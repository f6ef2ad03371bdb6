"""A user's Triton kernel in a file of its own, right once and wrong in the usual ways.

As people write it after the tutorial: tl.dot on the operands as they are loaded, statistics
in float32, exp2 with log2(e) folded into the scale. Each mistake is a flag, so that it
differs from the right kernel in a line or two.
"""

import math

import torch
import triton
import triton.language as tl

BLOCK_M = 16
BLOCK_N = 16


@triton.jit
def _kernel(
    Q, K, V, Out, qk_scale, LEN_Q, LEN_K, HEAD_DIM,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    MISTAKE: tl.constexpr,
):  # fmt: skip
    off_hz = tl.program_id(1)
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    in_d = offs_d[None, :] < HEAD_DIM
    at_q = (off_hz * LEN_Q + offs_m[:, None]) * HEAD_DIM + offs_d[None, :]
    in_q = (offs_m[:, None] < LEN_Q) & in_d
    q = tl.load(Q + at_q, mask=in_q, other=0.0)
    m_i = tl.full([BLOCK_M], 0.0 if MISTAKE == "m_starts_at_zero" else float("-inf"), tl.float32)
    l_i = tl.full([BLOCK_M], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end_n = LEN_K
    if IS_CAUSAL:
        # The blocks beyond the diagonal are not loaded.
        end_n = tl.minimum(LEN_K, (tl.program_id(0) + 1) * BLOCK_M)
        if MISTAKE == "diagonal_block_skipped":
            end_n = tl.minimum(LEN_K, tl.program_id(0) * BLOCK_M)
    if MISTAKE == "tail_dropped" and LEN_K > BLOCK_N:
        end_n = tl.minimum(end_n, LEN_K // BLOCK_N * BLOCK_N)
    for start_n in range(0, end_n, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        at_k = (off_hz * LEN_K + offs_n[:, None]) * HEAD_DIM + offs_d[None, :]
        in_k = (offs_n[:, None] < LEN_K) & in_d
        k = tl.load(K + at_k, mask=in_k, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        if MISTAKE != "tail_padded":
            qk = tl.where(offs_n[None, :] < LEN_K, qk, float("-inf"))
        if IS_CAUSAL and MISTAKE != "causal_forgotten":
            late = 1 if MISTAKE == "causal_sees_next" else 0
            qk = tl.where(offs_n[None, :] <= offs_m[:, None] + late, qk, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        if MISTAKE == "no_max":
            m_new = tl.zeros_like(m_i)
        alpha = tl.exp2(m_i - m_new)
        if MISTAKE == "no_max":
            alpha = tl.full([BLOCK_M], 1.0, tl.float32)
        p = tl.exp2(qk - m_new[:, None])
        if MISTAKE == "half_statistics":
            m_new = m_new.to(q.dtype).to(tl.float32)
            alpha = alpha.to(q.dtype).to(tl.float32)
            p = p.to(q.dtype).to(tl.float32)
        l_i = l_i * alpha + tl.sum(p, 1)
        if MISTAKE == "half_statistics":
            l_i = l_i.to(q.dtype).to(tl.float32)
        if MISTAKE != "acc_not_rescaled":
            acc = acc * alpha[:, None]
        v = tl.load(V + at_k, mask=in_k, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m_i = m_new
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    tl.store(Out + at_q, acc.to(Out.dtype.element_ty), mask=in_q)


def _attention(query, key, value, is_causal=False, scale=None, mistake=""):
    query, key, value = (t.contiguous() for t in (query, key, value))
    batch, heads, len_q, dim = query.shape
    if value.shape[-1] != dim:
        raise NotImplementedError("one head size for q, k and v")
    sm_scale = dim**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    _kernel[(triton.cdiv(len_q, BLOCK_M), batch * heads)](
        query, key, value, out, sm_scale * math.log2(math.e), len_q, key.shape[2], dim,
        IS_CAUSAL=is_causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        BLOCK_D=max(16, triton.next_power_of_2(dim)), MISTAKE=mistake,
    )  # fmt: skip
    return out


def _with(mistake=""):
    def attention(query, key, value, *, is_causal=False, scale=None):
        return _attention(query, key, value, is_causal, scale, mistake)

    return attention


right = _with()
acc_not_rescaled = _with("acc_not_rescaled")
m_starts_at_zero = _with("m_starts_at_zero")
no_max = _with("no_max")
half_statistics = _with("half_statistics")
tail_padded = _with("tail_padded")
tail_dropped = _with("tail_dropped")
causal_sees_next = _with("causal_sees_next")
causal_forgotten = _with("causal_forgotten")
diagonal_block_skipped = _with("diagonal_block_skipped")
