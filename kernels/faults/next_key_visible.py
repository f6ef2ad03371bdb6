"""A query sees one key of its future under a causal mask.

Kind            E
What is wrong   j <= i + 1; where the loop ends at the diagonal, the last query of a block does
                not see it
Where seen      ModelTC/LightLLM#1311 and #1312: keys of the future are admitted, there by the
                right edge of a window
Killed by       agreement, causal_prefix, poison_masked, equal_scores
Survives        calls that are not causal, one key
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None] + 1",
        ),
    ],
    "fp32_stats": [
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j > i + 1, -math.inf)"),
    ],
    "triton_flash": [
        ("visible &= cols[None, :] <= offs_m", "visible &= cols[None, :] <= offs_m + 1"),
    ],
    "numpy_naive": [
        (
            "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]",
            "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None] + 1",
        ),
    ],
}
