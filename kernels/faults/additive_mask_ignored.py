"""An additive mask is accepted and not used.

Kind            A
What is wrong   the path that was written for bool masks takes every mask and skips the
                addition
Where seen      sgl-project/sglang#20278: a backend drops the custom mask
Killed by       agreement, poison_masked
Survives        bool masks, and additive ones that are 0 everywhere
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s if additive else np.where(block, s, -np.inf).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [("s = s + mask.to(stats)", "s = s + 0")],
    "triton_flash": [("qk += mask.to(tl.float32)", "qk += 0.0")],
    "numpy_naive": [("s = s + to_array(attn_mask).astype(q.dtype)", "s = s + 0")],
}
