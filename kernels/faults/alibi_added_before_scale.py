"""ALiBi is multiplied by the scale.

Kind            G
What is wrong   (q.k - slope distance) scale
Where seen      no public issue names it; the counterpart of a mask that is added before the
                scale
Killed by       agreement
Survives        scale = 1; slopes near 0
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s - slopes * sm_scale * np.abs(offset).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s - alibi_slopes.to(stats)[:, None, None] * sm_scale * offset.abs().to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * sm_scale * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * sm_scale * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
}
