"""Under a causal mask the loop over queries starts one block late.

Kind            P
What is wrong   the first query of a block of keys is rounded up to a whole block of queries instead
                of down
Where seen      no public issue names it; the bounds of loops at the diagonal are those of Dao-
                AILab/flash-attention's commits c65b5106 and a4f148b6
Killed by       gradients, value_gradient_sum
Survives        blocks of keys that are whole blocks of queries, and square ones above all: the
                usual configuration
"""

edits = {
    "fp32_backward": [
        (
            "begin = start_n",
            "begin = -(-start_n // BLOCK_M) * BLOCK_M",
        )
    ],
    "triton_backward": [
        (
            "first_m = start_n // BLOCK_M * BLOCK_M",
            "first_m = tl.cdiv(start_n, BLOCK_M) * BLOCK_M",
        )
    ],
}
