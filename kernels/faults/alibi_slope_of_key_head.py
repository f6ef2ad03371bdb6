"""Query heads of a group share the slope of their key head.

Kind            G
What is wrong   slopes are read at h // (Hq // Hkv), as keys are
Where seen      Dao-AILab/flash-attention#540 (slopes where heads are not what they were for)
Killed by       agreement
Survives        Hkv = Hq; slopes that are equal within a group
"""

edits = {
    "numpy_online": [
        (
            "slopes = to_array(alibi_slopes).astype(q.dtype)[:, None, None]",
            """
slopes = to_array(alibi_slopes)[np.arange(heads) // (heads // key.shape[1])]
slopes = slopes.astype(q.dtype)[:, None, None]
""",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            """
of_head = torch.arange(heads, device=device) // (group if enable_gqa else 1)
s = s - alibi_slopes[of_head].to(stats)[:, None, None] * offset.abs().to(stats)
""",
        ),
    ],
    "triton_flash": [
        (
            "slope = tl.load(Slopes + off_h)",
            "slope = tl.load(Slopes + off_hkv)",
        ),
    ],
    "triton_decode": [
        (
            "slope = tl.load(Slopes + off_h)",
            "slope = tl.load(Slopes + off_hkv)",
        ),
    ],
}
