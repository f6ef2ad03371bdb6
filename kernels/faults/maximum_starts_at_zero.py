"""The running maximum starts at 0 instead of -inf.

Kind            B
What is wrong   rows whose scores are all negative keep 0 as their reference: below -87 every
                weight underflows in float32, below -745 in float64, and below -17 P that is
                rounded to float16
Where seen      derivations of online softmax name it as a mistake that silently breaks rows
                whose scores are all negative
Killed by       agreement, finite, score_shift, constant_v
Survives        rows with a score above 0, and, within rounding, scores that are a little
                below: randn inputs have both
"""

edits = {
    "numpy_online": [
        (
            "m_i = np.full((batch, heads, len_q, 1), -np.inf, q.dtype)",
            "m_i = np.zeros((batch, heads, len_q, 1), q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=stats, device=device)",
            "m_i = torch.zeros(*q.shape[:3], 1, dtype=stats, device=device)",
        ),
    ],
    "triton_flash": [
        (
            'm_i = tl.full([BLOCK_M], float("-inf"), tl.float32)',
            "m_i = tl.full([BLOCK_M], 0.0, tl.float32)",
        ),
    ],
    "numpy_naive": [
        (
            "m = s.max(axis=-1, keepdims=True, initial=-np.inf)",
            "m = s.max(axis=-1, keepdims=True, initial=0.0)",
        ),
    ],
}
