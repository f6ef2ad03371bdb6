"""A sequence reaches one key into the next.

Kind            J
What is wrong   cu_seqlens[i + 1] is taken for the last key of sequence i, which it
                is one beyond
Where seen      the class of tile-ai/tilelang#2010
Killed by       agreement, sequence_independence
Survives        the last sequence; a first key of little weight
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k + 1)",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k + 1)",
        ),
    ],
}
