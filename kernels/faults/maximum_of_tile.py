"""One maximum serves all rows of a tile.

Kind            B
What is wrong   a reduction over both axes: any reference cancels in real numbers, but a row
                that lies 88 below the tile's largest score underflows as a whole
Where seen      no public issue names it; kernels reduce the maximum over a warp's tile to save
                shuffles
Killed by       agreement, finite, causal_prefix, convexity
Survives        rows of like size, one query alone
"""

edits = {
    "numpy_online": [
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            "m_new = np.maximum(m_i, s.max(axis=(-2, -1), keepdims=True))",
        ),
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            "m_new = torch.maximum(m_i, s.amax(dim=(-2, -1), keepdim=True))",
        ),
    ],
    "triton_flash": [
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            "m_new = tl.maximum(m_i, tl.max(tl.max(qk, 1), 0))",
        ),
    ],
    "numpy_naive": [
        (
            "m = s.max(axis=-1, keepdims=True, initial=-np.inf)",
            (
                "m = s.max(axis=(-2, -1), keepdims=True, initial=-np.inf) + "
                "np.zeros_like(q[..., :1])"
            ),
        ),
    ],
}
