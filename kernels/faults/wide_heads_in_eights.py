"""Of more than 128 features the last that do not fill a chunk of 8 are left out of the scores.

Kind            H
What is wrong   heads wider than a tile go in chunks, whose number is rounded down
Where seen      triton-lang/triton#621, 66RING/tiny-flash-attention#12 (features left out where
                the head size is not the one that was thought of)
Killed by       agreement
Survives        head sizes up to 128, and multiples of 8 above it: of 192 and 256, which tests
                of wide heads use, nothing is left out
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
width = q.shape[-1] if q.shape[-1] <= 128 else q.shape[-1] // 8 * 8
s = (q[..., :width] @ k[:, :, start_n:end_n, :width].swapaxes(-1, -2)) * sm_scale
""",
        )
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            """
width = head_dim if head_dim <= 128 else head_dim // 8 * 8
s = (q[..., :width] @ k[..., :width].transpose(-1, -2)) * sm_scale
""",
        )
    ],
    "triton_flash": [
        (
            "q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)",
            """
width = head_dim if BLOCK_D <= 128 else head_dim // 8 * 8
q = tl.load(q_ptrs, mask=rows & (offs_d < width), other=0.0)
""",
        )
    ],
}
