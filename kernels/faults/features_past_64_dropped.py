"""Scores are computed from the first 64 features.

Kind            H
What is wrong   the tile of features is 64 wide whatever the head size is, and nothing loops
                over the rest
Where seen      triton-lang/triton#621 (the tutorial's kernel with a hard-coded width of 64)
Killed by       agreement
Survives        head sizes up to 64, which is what the test of such a kernel uses
"""

edits = {
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            "s = (q[..., :64] @ k[..., :64].swapaxes(-1, -2)) * sm_scale",
        )
    ],
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            "s = (q[..., :64] @ k[:, :, start_n:end_n, :64].swapaxes(-1, -2)) * sm_scale",
        )
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            "s = (q[..., :64] @ k[..., :64].transpose(-1, -2)) * sm_scale",
        )
    ],
    "triton_flash": [
        (
            "q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)",
            "q = tl.load(q_ptrs, mask=rows & (offs_d < tl.minimum(head_dim, 64)), other=0.0)",
        )
    ],
}
