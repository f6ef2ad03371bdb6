"""The keys after the last whole block are dropped.

Kind            H
What is wrong   the number of blocks of keys is Lk // BLOCK_N, and 1 at least, where it has
                to be rounded up
Where seen      jax-ml/jax#27224 and #23819 (lengths that are no multiple of the block)
Killed by       agreement, causal_prefix
Survives        Lk below one block or a multiple of it: every test with lengths that are
                powers of two
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            (
                "if last - first > BLOCK_N:\n"
                "    last -= (last - first) % BLOCK_N\n"
                "starts = range(first, last, BLOCK_N)"
            ),
        )
    ],
    "fp32_stats": [
        (
            "len_k = key.shape[2]",
            """
len_k = key.shape[2]
if len_k > BLOCK_N:
    len_k = len_k // BLOCK_N * BLOCK_N
    attn_mask = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
    attn_mask = None if attn_mask is None else attn_mask[..., :len_k]
""",
        )
    ],
    "triton_flash": [
        (
            "end_n = len_k",
            "end_n = tl.minimum(len_k, tl.maximum(len_k // BLOCK_N, 1) * BLOCK_N)",
        )
    ],
}
