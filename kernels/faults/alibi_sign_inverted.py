"""ALiBi favours keys that are far away.

Kind            G
What is wrong   slope times distance is added where it is to be subtracted
Where seen      meta-pytorch/attention-gym#86 (q - kv where kv - q is meant)
Killed by       agreement
Survives        one key; slopes near 0, such as those of the last heads in short sequences
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s + slopes * np.abs(offset).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s + alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk += slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk += slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
}
