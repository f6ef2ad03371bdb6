"""The causal mask is aligned bottom-right instead of top-left.

Kind            E
What is wrong   j <= i + Lk - Lq, in the mask and in the end of the loop
Where seen      NVIDIA/cutlass#2336, microsoft/onnxruntime#29020 (two providers of one operator
                disagree), ml-explore/mlx#2836 (another convention);
                Dao-AILab/flash-attention#1778 on its empty rows
Killed by       agreement, causal_prefix, poison_masked, convexity
Survives        as many queries as keys, the only case in many tests
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None] + len_k - len_q",
        ),
    ],
    "fp32_stats": [
        (
            "end = min(len_k, rows.stop) if is_causal else len_k",
            "end = min(len_k, rows.stop + len_k - len_q) if is_causal else len_k",
        ),
        (
            "s = s.masked_fill(j > i, -math.inf)",
            "s = s.masked_fill(j > i + len_k - len_q, -math.inf)",
        ),
    ],
    "triton_flash": [
        (
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)",
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M + len_k - len_q)",
        ),
        (
            "visible &= cols[None, :] <= offs_m",
            "visible &= cols[None, :] <= offs_m + len_k - len_q",
        ),
    ],
    "numpy_naive": [
        (
            "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]",
            (
                "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None] + "
                "s.shape[-1] - s.shape[-2]"
            ),
        ),
    ],
}
