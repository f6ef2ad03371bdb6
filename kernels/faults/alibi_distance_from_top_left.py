"""ALiBi's distance is |i - j|, without Lk - Lq.

Kind            G
What is wrong   the first query is put at the first key, not the last query at the last
Where seen      vllm-project/vllm#945 is the same confusion of places, by one; ROCm/flash-
                attention#158 in a window
Killed by       agreement
Survives        as many queries as keys; under a causal mask all but the lse, since a shift of
                all scores changes no weight
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s - slopes * np.abs(offset + shift).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s - alibi_slopes.to(stats)[:, None, None] * (offset + shift).abs().to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * tl.abs(offs_m - cols[None, :]).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * tl.abs(offs_m - cols[None, :]).to(tl.float32)",
        ),
    ],
}
