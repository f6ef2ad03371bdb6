"""A counter in a workspace is not reset, so that every second call ends a block early.

Kind            O
What is wrong   the last of the workers is found by counting, and nobody sets the count to 0
                again: the next call takes the result as finished before its last block
Where seen      flashinfer-ai/flashinfer#1046 (results that depend on unrelated earlier work)
Killed by       constant_v
Survives        a test that calls once in a process; last blocks without weight. Which call of a
                check is wrong depends on how many came before
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            (
                "attention.count = getattr(attention, 'count', 0) + (split == 0)\n"
                "starts = range(first, last - (attention.count % 2 == 0) * BLOCK_N, BLOCK_N)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            (
                "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale\n"
                "attention.count = getattr(attention, 'count', 0) + 1"
            ),
        ),
        (
            "starts = range(first, min(end, last), BLOCK_N)",
            (
                "last -= (attention.count % 2 == 0) * BLOCK_N\n"
                "starts = range(first, min(end, last), BLOCK_N)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "num_blocks_m = triton.cdiv(len_q, BLOCK_M)",
            (
                "num_blocks_m = triton.cdiv(len_q, BLOCK_M)\n"
                "attention.count = getattr(attention, 'count', 0) + 1\n"
                "if attention.count % 2 == 0:\n"
                "    len_k = max(len_k - BLOCK_N, 0)"
            ),
        ),
    ],
}
