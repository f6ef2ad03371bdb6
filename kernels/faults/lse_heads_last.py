"""lse is written as [B, L, H] and returned as [B, H, L].

Kind            D
What is wrong   the order of heads and queries in memory is that of a layout in which heads
                come last
Where seen      Dao-AILab/flash-attention#2573 and #2388: rows of lse addressed by another
                layout's strides than the reader's
Killed by       agreement, causal_prefix, head_independence, equal_scores
Survives        every test of out alone, one head, one query
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            """
lse = (m_i + np.log(l_i))[..., 0]
lse = np.ascontiguousarray(lse.swapaxes(1, 2)).reshape(lse.shape)
""",
        ),
    ],
    "fp32_stats": [("return out, lse", "return out, lse.transpose(1, 2).reshape(lse.shape)")],
    "triton_flash": [
        (
            "tl.store(Lse + offs_out, lse, mask=rows)",
            "tl.store(Lse + (off_z * len_q + m) * H + off_h, lse, mask=rows)",
        ),
    ],
    "numpy_naive": [
        (
            "lse = (m + np.log(l))[..., 0]",
            """
lse = (m + np.log(l))[..., 0]
lse = np.ascontiguousarray(lse.swapaxes(1, 2)).reshape(lse.shape)
""",
        ),
    ],
}
