"""Every sequence is as long as the longest.

Kind            J
What is wrong   max_seqlen_k bounds the loop over keys where the sequence's own
                length should
Where seen      tile-ai/tilelang#2010 (review): a guard by max_seqlen lets a block
                cross into the next sequence
Killed by       agreement, sequence_independence
Survives        sequences of one length; the last one
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
longest = int((cu_k[1:] - cu_k[:-1]).max())
rows, cols = slice(begin_q, end_q), slice(begin_k, begin_k + longest)
""",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
longest = int((cu_k[1:] - cu_k[:-1]).max())
rows, cols = slice(begin_q, end_q), slice(begin_k, begin_k + longest)
""",
        ),
    ],
}
