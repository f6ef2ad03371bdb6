"""The last block of a split reaches into the next one.

Kind            L
What is wrong   blocks end at the length of the keys, not at that of their split, so that keys
                count twice
Where seen      flashinfer-ai/flashinfer#1206 (a chunk that is no multiple of the tile)
Killed by       agreement, split_independence
Survives        one split; splits of whole blocks
"""

edits = {
    "numpy_online": [
        ("end_n = min(start_n + BLOCK_N, last)", "end_n = min(start_n + BLOCK_N, len_k)"),
    ],
    "fp32_stats": [
        (
            "cols = slice(start_n, min(start_n + BLOCK_N, last))",
            "cols = slice(start_n, min(start_n + BLOCK_N, len_k))",
        ),
    ],
    "triton_decode": [
        (
            "end_n = tl.minimum(end_n, begin_n + len_split)",
            "end_n = tl.minimum(end_n, begin_n + len_split + 1)",
        ),
    ],
}
