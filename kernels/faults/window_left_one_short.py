"""A window ends one key short of its left end.

Kind            F
What is wrong   left counts the query's own key: i - left + 1 .. i, not i - left .. i
Where seen      zml/zml#763 (a window that excludes its end); huggingface/transformers#39408 has
                both conventions
Killed by       agreement
Survives        left = 0; windows wider than the sequence; a key of little weight at the edge
"""

edits = {
    "numpy_online": [
        (
            "left, right = window_size",
            """
left, right = window_size
left -= left > 0
""",
        ),
    ],
    "fp32_stats": [
        (
            "left, right = window_size",
            """
left, right = window_size
left -= left > 0
""",
        ),
    ],
    "triton_flash": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = left and left - 1
""",
        ),
    ],
    "triton_decode": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = left and left - 1
""",
        ),
    ],
}
