"""The causal mask compares the query with the key's place inside its block.

Kind            E
What is wrong   start_n is left out: in every block but the first a query sees keys of its
                future
Where seen      tile-ai/tilelang#864 (mask and loop from one index alone)
Killed by       agreement, equal_scores, causal_prefix
Survives        calls that are not causal, no more keys than a block has
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(end_n - start_n) <= np.arange(len_q)[:, None]",
        ),
    ],
    "fp32_stats": [
        (
            "j = torch.arange(cols.start, cols.stop, device=device)",
            "j = torch.arange(cols.stop - cols.start, device=device)",
        ),
    ],
    "triton_flash": [
        ("visible &= cols[None, :] <= offs_m", "visible &= offs_n[None, :] <= offs_m"),
    ],
}
