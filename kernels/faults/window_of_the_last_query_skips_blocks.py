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
}
