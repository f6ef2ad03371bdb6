"""Positions are compared in a narrow integer.

Kind            M
What is wrong   the causal mask compares j and i modulo 64, as vectors of small integers do that
                hold positions of a block but not of a sequence
Where seen      Dao-AILab/flash-attention#2662 (a length that became negative in the scheduler);
                vectorized CPU masks that compare 8-bit or 16-bit lanes
Killed by       agreement
Survives        up to 64 queries and keys; no causal mask
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(start_n, end_n) % 64 <= np.arange(len_q)[:, None] % 64",
        ),
    ],
    "fp32_stats": [
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j % 64 > i % 64, -math.inf)"),
    ],
    "triton_flash": [
        ("visible &= cols[None, :] <= offs_m", "visible &= cols[None, :] % 64 <= offs_m % 64"),
    ],
    "numpy_naive": [
        (
            "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]",
            "visible = np.arange(s.shape[-1]) % 64 <= np.arange(s.shape[-2])[:, None] % 64",
        ),
    ],
}
