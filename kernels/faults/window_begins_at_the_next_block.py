"""The first block of a window is skipped unless the window begins where it does.

Kind            F
What is wrong   the first block is the begin of the window over the size of a block, rounded up
Where seen      no public issue names it; ROCm/flash-attention#158 has a first key that is too
                late
Killed by       agreement
Survives        windows that begin before the first key or at the edge of a block; sequences of
                one block
"""

edits = {
    "numpy_online": [
        (
            "first += max(0, begin - first) // BLOCK_N * BLOCK_N",
            "first += -(-max(0, begin - first) // BLOCK_N) * BLOCK_N",
        ),
    ],
    "fp32_stats": [
        (
            "first += max(0, begin - first) // BLOCK_N * BLOCK_N",
            "first += -(-max(0, begin - first) // BLOCK_N) * BLOCK_N",
        ),
    ],
    "triton_flash": [
        (
            "begin_n = first_n // BLOCK_N * BLOCK_N",
            "begin_n = tl.cdiv(first_n, BLOCK_N) * BLOCK_N",
        ),
    ],
    "triton_decode": [
        (
            "begin_n = tl.maximum(0, first_m + shift - window_left) // BLOCK_N * BLOCK_N",
            "begin_n = tl.cdiv(tl.maximum(0, first_m + shift - window_left), BLOCK_N) * BLOCK_N",
        ),
    ],
}
