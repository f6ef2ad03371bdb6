"""A finite -5e4 stands for -inf: as the hidden score, and as the maximum at the start.

Kind            A
What is wrong   valid scores below -5e4 never raise the maximum and all underflow; a row that
                sees no key has weights of exp(0)
Where seen      flashinfer-ai/flashinfer#4401, #4267, #4450, #4451 and #4452: zero rows and an
                lse near -5e4, in one path after the other
Killed by       agreement, key_permutation, poison_masked, causal_prefix
Survives        rows that see a key, with scores above -5e4: everything that models make
"""

edits = {
    "numpy_online": [
        (
            "m_i = np.full((batch, heads, len_q, 1), -np.inf, q.dtype)",
            "m_i = np.full((batch, heads, len_q, 1), -5e4, q.dtype)",
        ),
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, s, -5e4).astype(q.dtype)",
        ),
        (
            "s = np.where(visible, s, -np.inf).astype(q.dtype)",
            "s = np.where(visible, s, -5e4).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=stats, device=device)",
            "m_i = torch.full((*q.shape[:3], 1), -5e4, dtype=stats, device=device)",
        ),
        ("s = s.masked_fill(~mask, -math.inf)", "s = s.masked_fill(~mask, -5e4)"),
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j > i, -5e4)"),
    ],
    "triton_flash": [
        (
            'm_i = tl.full([BLOCK_M], float("-inf"), tl.float32)',
            "m_i = tl.full([BLOCK_M], -50000.0, tl.float32)",
        ),
        ('qk = tl.where(visible, qk, float("-inf"))', "qk = tl.where(visible, qk, -50000.0)"),
    ],
}
