"""The causal loop ends before the block of keys that the diagonal crosses.

Kind            E
What is wrong   the end is the block's first query instead of one past its last: queries see
                only keys that all of their block see
Where seen      gittensor-ai-lab/sparkinfer#3: an end computed from the query alone is too
                early, there by the prefix
Killed by       agreement, constant_v, one_hot, finite
Survives        calls that are not causal
"""

edits = {
    "numpy_online": [
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            (
                "visible = (np.arange(start_n, end_n) <= np.arange(len_q)[:, None]) & (end_n <= "
                "np.arange(len_q)[:, None])"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "end = min(len_k, rows.stop) if is_causal else len_k",
            "end = min(len_k, rows.start) if is_causal else len_k",
        ),
    ],
    "triton_flash": [
        (
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)",
            "end_n = tl.minimum(len_k, start_m * BLOCK_M)",
        ),
    ],
}
