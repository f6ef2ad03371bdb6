"""Blocks are skipped that the last query of a tile does not see, though its first does.

Kind            F
What is wrong   the first block is that of the tile's last row, and so are the keys that all of
                its rows start from
Where seen      no public issue names it; FlashAttention takes the first row for the begin and
                the last for the end
Killed by       agreement
Survives        one query; windows open on the left; tiles that are no taller than the window's
                last block is wide
"""

edits = {
    "numpy_online": [
        (
            "begin = max(0, shift - left) if left >= 0 else 0",
            "begin = max(0, len_k - 1 - left) if left >= 0 else 0",
        ),
    ],
    "fp32_stats": [
        (
            "begin = max(0, rows.start + shift - left) if left >= 0 else 0",
            "begin = max(0, rows.stop - 1 + shift - left) if left >= 0 else 0",
        ),
    ],
    "triton_flash": [
        (
            "first_n = tl.maximum(0, start_m * BLOCK_M + shift - window_left)",
            """
last_row = tl.minimum(len_q, (start_m + 1) * BLOCK_M) - 1
first_n = tl.maximum(0, last_row + shift - window_left)
""",
        ),
    ],
    "triton_decode": [
        (
            "begin_n = tl.maximum(0, first_m + shift - window_left) // BLOCK_N * BLOCK_N",
            "begin_n = tl.maximum(0, last_m + shift - window_left) // BLOCK_N * BLOCK_N",
        ),
    ],
}
