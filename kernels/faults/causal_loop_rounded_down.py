"""The end of the causal loop is rounded down to whole blocks of keys.

Kind            E
What is wrong   a division that should round up: the last, partial block of keys before the
                diagonal is never visited
Where seen      google/jax#27224 and #23819: lengths that are no multiple of the block, there
                without a causal mask
Killed by       agreement, one_hot, constant_v, causal_prefix
Survives        calls that are not causal; lengths that are multiples of every block size, as
                powers of two are
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            (
                "last = min(last, min(len_q, len_k) // BLOCK_N * BLOCK_N) if is_causal else last\n"
                "starts = range(first, last, BLOCK_N)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "end = min(len_k, rows.stop) if is_causal else len_k",
            "end = min(len_k, rows.stop) // BLOCK_N * BLOCK_N if is_causal else len_k",
        ),
    ],
    "triton_flash": [
        (
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)",
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M) // BLOCK_N * BLOCK_N",
        ),
    ],
}
