"""Queries beyond the longest sequence of keys are not computed.

Kind            J
What is wrong   the grid is sized by max_seqlen_k in place of max_seqlen_q
Where seen      the class of Dao-AILab/flash-attention#2470
Killed by       agreement, poison_output, poison_memory
Survives        as many keys as queries or more, which decoding and training have
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
longest = int((cu_k[1:] - cu_k[:-1]).max())
rows, cols = slice(begin_q, min(end_q, begin_q + longest)), slice(begin_k, end_k)
""",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
longest = int((cu_k[1:] - cu_k[:-1]).max())
rows, cols = slice(begin_q, min(end_q, begin_q + longest)), slice(begin_k, end_k)
""",
        ),
    ],
}
