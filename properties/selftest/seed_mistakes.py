"""A user's kernel file: FlashAttention in plain torch, right once and wrong in the usual ways.

Each function is a TARGET. The mistakes are those that every derivation of online softmax
warns of; they are flags of one implementation here, so that each differs from the right one
in a line or two.
"""

import math

import torch

BLOCK_N = 16


def _attention(query, key, value, is_causal=False, scale=None, mistake=None):
    sm_scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    q, k, v = query.float(), key.float(), value.float()
    stats = torch.float16 if mistake == "half_statistics" else torch.float32
    rows, n = q.shape[2], k.shape[2]
    if n == 0:
        return torch.zeros(*query.shape[:3], v.shape[3], dtype=query.dtype)
    first = 0.0 if mistake == "m_starts_at_zero" else -math.inf
    m_i = torch.full((*q.shape[:3], 1), first)
    l_i = torch.zeros(*q.shape[:3], 1)
    acc = torch.zeros(*q.shape[:3], v.shape[3])
    stop = n - n % BLOCK_N if mistake == "tail_dropped" and n > BLOCK_N else n
    for start in range(0, stop, BLOCK_N):
        k_block, v_block = k[:, :, start : start + BLOCK_N], v[:, :, start : start + BLOCK_N]
        if mistake == "tail_padded":
            missing = BLOCK_N - k_block.shape[2]
            k_block, v_block = (
                torch.nn.functional.pad(t, (0, 0, 0, missing)) for t in (k_block, v_block)
            )
        scores = q @ k_block.mT * sm_scale
        if is_causal:
            i = torch.arange(rows)[:, None]
            j = torch.arange(start, start + k_block.shape[2])
            late = {"causal_sees_next": 1, "causal_misses_itself": -1}.get(mistake, 0)
            scores = scores.masked_fill(j > i + late, -math.inf)
        scores = scores.to(stats).float()
        if mistake == "no_max":
            m_new, shift = m_i, 0.0
        else:
            m_new = torch.maximum(m_i, scores.amax(-1, keepdim=True)).to(stats).float()
            shift = m_new
        alpha = (
            torch.ones_like(l_i)
            if mistake == "no_max"
            else torch.exp(m_i - m_new).to(stats).float()
        )
        p = torch.exp(scores - shift).to(stats).float()
        l_i = (l_i * alpha + p.sum(-1, keepdim=True)).to(stats).float()
        if mistake != "acc_not_rescaled":
            acc = acc * alpha
        acc = acc + p.to(query.dtype).float() @ v_block
        m_i = m_new
    if mistake == "causal_misses_itself":
        l_i = torch.where(l_i == 0, 1.0, l_i)
    return (acc / l_i).to(query.dtype)


def _with(mistake=None):
    def attention(query, key, value, is_causal=False, scale=None):
        return _attention(query, key, value, is_causal, scale, mistake)

    return attention


right = _with()
half_statistics = _with("half_statistics")
no_max = _with("no_max")
acc_not_rescaled = _with("acc_not_rescaled")
m_starts_at_zero = _with("m_starts_at_zero")
tail_dropped = _with("tail_dropped")
tail_padded = _with("tail_padded")
causal_sees_next = _with("causal_sees_next")
causal_misses_itself = _with("causal_misses_itself")


def merge_without_rescaling(query, key, value):
    """Two halves of the keys, each with its own maximum, summed as if they shared it."""
    sm_scale = 1 / math.sqrt(query.shape[-1])
    total, normalizer = 0.0, 0.0
    for k, v in zip(key.float().chunk(2, 2), value.float().chunk(2, 2), strict=False):
        if k.shape[2] == 0:
            continue
        scores = query.float() @ k.mT * sm_scale
        p = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = total + p.to(query.dtype).float() @ v
        normalizer = normalizer + p.sum(-1, keepdim=True)
    if key.shape[2] == 0:
        return torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype)
    return (total / normalizer).to(query.dtype)
