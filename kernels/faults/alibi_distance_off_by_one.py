"""ALiBi's distance is one too large.

Kind            G
What is wrong   every distance is counted from the place after the query's, or both ends are
                counted
Where seen      vllm-project/vllm#945 (token index minus context length, without + 1)
Killed by       agreement
Survives        every test that looks at the output alone, since all scores of a row are shifted
                by the slope
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s - slopes * (np.abs(offset) + 1).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s - alibi_slopes.to(stats)[:, None, None] * (offset.abs() + 1).to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * (tl.abs(offs_m + shift - cols[None, :]) + 1).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            "qk -= slope * (tl.abs(offs_m + shift - cols[None, :]) + 1).to(tl.float32)",
        ),
    ],
}
