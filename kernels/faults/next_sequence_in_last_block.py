"""Keys of the next sequence are visible in the last block of one.

Kind            J
What is wrong   the last block of keys is hidden beyond the end of the packed
                batch, not of the sequence: its length counts as whole blocks of 16
Where seen      tile-ai/tilelang#2010 (review): blocks are bounded by the longest
                sequence, not by their own
Killed by       agreement, sequence_independence
Survives        lengths that are multiples of the block; the last sequence; one
                sequence alone
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
end_k = end_k + (begin_k - end_k) % 16
rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
""",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
end_k = end_k + (begin_k - end_k) % 16
rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
""",
        ),
    ],
}
