"""Scores are computed from as many features as the power of two below the head size.

Kind            H
What is wrong   the tile of features has to be a power of two and is rounded down, not up:
                of 96 features 64 count
Where seen      66RING/tiny-flash-attention#12 (wrong unless D is a power of two)
Killed by       agreement
Survives        head sizes that are powers of two: 64 and 128 are all that most tests try
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
width = 1 << q.shape[-1].bit_length() - 1
s = (q[..., :width] @ k[:, :, start_n:end_n, :width].swapaxes(-1, -2)) * sm_scale
""",
        )
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            """
width = 1 << head_dim.bit_length() - 1
s = (q[..., :width] @ k[..., :width].transpose(-1, -2)) * sm_scale
""",
        )
    ],
    "triton_flash": [
        (
            "q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)",
            """
width = tl.where(head_dim == BLOCK_D, BLOCK_D, BLOCK_D // 2)
q = tl.load(q_ptrs, mask=rows & (offs_d < tl.minimum(head_dim, width)), other=0.0)
""",
        )
    ],
}
