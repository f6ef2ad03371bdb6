"""The block on the diagonal is not masked in rows from 1024 on.

Kind            E
What is wrong   which blocks need the causal mask is looked up in a table that ends, and beyond it
                all keys of the last block are taken in
Where seen      the class of NVIDIA/cutlass#2336: wrong rows of a causal mask that the example's
                own sizes do not have
Killed by       agreement, causal_prefix
Survives        fewer than 1026 queries, or keys: what a test computes a reference of
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            """
i = np.arange(len_q)[:, None]
visible = np.arange(start_n, end_n) <= np.where(i < 1024, i, i // 128 * 128 + 127)
""",
        ),
    ],
    "fp32_stats": [
        (
            "s = s.masked_fill(j > i, -math.inf)",
            """
seen = torch.where(i < 1024, i, i // 128 * 128 + 127)
s = s.masked_fill(j > seen, -math.inf)
""",
        ),
    ],
}
