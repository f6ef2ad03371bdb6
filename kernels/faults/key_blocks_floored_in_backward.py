"""The backward leaves out the keys after the last whole block.

Kind            P
What is wrong   the number of blocks of keys is rounded down
Where seen      no public issue names it for a backward; key_blocks_floored is its counterpart in
                the forward pass
Killed by       gradients, value_gradient_sum
Survives        Lk that is a multiple of the block
"""

edits = {
    "fp32_backward": [
        (
            "for start_n in range(0, len_k, BLOCK_N): ...",
            "for start_n in range(0, len_k // BLOCK_N * BLOCK_N, BLOCK_N): ...",
        )
    ],
    "triton_backward": [
        (
            "for start_n in range(begin_n, end_n, BLOCK_N): ...",
            "for start_n in range(begin_n, end_n // BLOCK_N * BLOCK_N, BLOCK_N): ...",
        )
    ],
}
