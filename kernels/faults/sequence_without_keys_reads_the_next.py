"""A sequence without keys sees the first key of the next one.

Kind            J
What is wrong   lengths are raised to 1, so that nothing is divided by zero
Where seen      Dao-AILab/flash-attention#2568 and NVIDIA/cudnn-frontend#943:
                sequences of length zero, handled late
Killed by       agreement
Survives        batches without an empty sequence; an empty sequence at the end
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, max(end_k, begin_k + 1))",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, max(end_k, begin_k + 1))",
        ),
    ],
}
