"""A query does not see its own key under a causal mask.

Kind            E
What is wrong   j < i instead of j <= i: query 0 sees nothing
Where seen      no public issue names it for a causal mask; zml/zml#763 is off by one at the
                other edge, of a window
Killed by       agreement, constant_v, finite, convexity
Survives        calls that are not causal
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(start_n, end_n) < np.arange(len_q)[:, None]",
        ),
    ],
    "fp32_stats": [("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j >= i, -math.inf)")],
    "triton_flash": [("visible &= cols[None, :] <= offs_m", "visible &= cols[None, :] < offs_m")],
    "numpy_naive": [
        (
            "visible = np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None]",
            "visible = np.arange(s.shape[-1]) < np.arange(s.shape[-2])[:, None]",
        ),
    ],
}
