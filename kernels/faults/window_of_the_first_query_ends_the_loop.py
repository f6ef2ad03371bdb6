"""The loop over keys ends where the window of a tile's first query does.

Kind            F
What is wrong   the end is that of the tile's first row. Not in numpy_online, which has one tile
Where seen      no public issue names it; the counterpart of a causal loop that ends at the
                tile's first row
Killed by       agreement
Survives        one query; windows open on the right; tiles that end in the same block of keys
"""

edits = {
    "fp32_stats": [
        (
            "end = min(end, rows.stop + shift + right)",
            "end = min(end, rows.start + 1 + shift + right)",
        ),
    ],
    "triton_flash": [
        (
            "end_n = tl.minimum(end_n, last_m + shift + window_right + 1)",
            "end_n = tl.minimum(end_n, start_m * BLOCK_M + shift + window_right + 1)",
        ),
    ],
    "triton_decode": [
        (
            "end_n = tl.minimum(end_n, last_m + shift + window_right + 1)",
            "end_n = tl.minimum(end_n, first_m + shift + window_right + 1)",
        ),
    ],
}
