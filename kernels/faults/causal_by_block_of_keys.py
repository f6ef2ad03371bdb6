"""The causal mask is decided for a block of keys as a whole.

Kind            E
What is wrong   a query sees the whole block if it sees the block's first key: inside the
                diagonal block nothing is hidden
Where seen      no public issue names it; derivations of online softmax skip blocks of keys by
                their index, which leaves the one on the diagonal to be masked
Killed by       agreement, causal_prefix, convexity, poison_masked
Survives        calls that are not causal, blocks of one key
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.full(end_n - start_n, start_n) <= np.arange(len_q)[:, None]",
        ),
    ],
    "fp32_stats": [
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(cols.start > i, -math.inf)"),
    ],
    "triton_flash": [("visible &= cols[None, :] <= offs_m", "visible &= start_n <= offs_m")],
}
