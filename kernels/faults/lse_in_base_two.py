"""lse is in base 2.

Kind            D
What is wrong   a kernel that works in octaves stores log2 of the sum of exp2, too large by
                log2(e)
Where seen      sgl-project/sglang#40903 and #35045, flashinfer-ai/flashinfer#4547 and #4485
                (merged as if it were natural), lightseekorg/tokenspeed#571
Killed by       agreement, key_doubling, score_shift, equal_scores
Survives        every test of out alone; an lse of 0 or -inf
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            "lse = ((m_i + np.log(l_i)) * q.dtype.type(math.log2(math.e)))[..., 0]",
        ),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            "lse[:, :, rows] = ((m_i + torch.log(l_i)) * math.log2(math.e)).squeeze(-1)",
        ),
    ],
    "triton_flash": [
        (
            "lse = (m_i + tl.log(l_i))[:, None]",
            "lse = ((m_i + tl.log(l_i)) * 1.4426950408889634)[:, None]",
        ),
    ],
    "numpy_naive": [
        (
            "lse = (m + np.log(l))[..., 0]",
            "lse = ((m + np.log(l)) * q.dtype.type(math.log2(math.e)))[..., 0]",
        ),
    ],
}
