"""The rows of a sequence without keys are not written.

Kind            J
What is wrong   a program whose sequence has no keys returns before it stores
Where seen      Dao-AILab/flash-attention#2568, #2421 and #2515: zero-length K in
                varlen leaves out as it was
Killed by       agreement, poison_output, poison_memory
Survives        batches without an empty sequence; fresh memory that happens to
                hold zeros
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
if begin_k == end_k:
    continue
rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
""",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            """
if begin_k == end_k:
    continue
rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)
""",
        ),
    ],
}
