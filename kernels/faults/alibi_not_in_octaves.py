"""ALiBi in nats is added to scores in octaves.

Kind            G
What is wrong   log2(e) is folded into the scale for exp2, but slopes stay as they are, so that
                they count ln 2 times themselves
Where seen      no public issue names it; sgl-project/sglang#40903 and
                lightseekorg/tokenspeed#571 mix the two bases in the lse
Killed by       agreement
Survives        slopes near 0; one key, its own
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s - slopes * q.dtype.type(math.log(2)) * np.abs(offset).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s - alibi_slopes.to(stats)[:, None, None] * math.log(2) * offset.abs().to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * 0.6931472 * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * 0.6931472 * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
        ),
    ],
}
