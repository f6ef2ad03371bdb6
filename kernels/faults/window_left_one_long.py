"""A window reaches one key further to the left than it says.

Kind            F
What is wrong   left is taken for a count of keys besides the query's own and rounded up: left +
                1 keys are seen before the query's place
Where seen      huggingface/transformers#39408 and zml/zml#763 (one side counts keys, the other
                includes both ends)
Killed by       agreement
Survives        windows wider than the sequence; a key of little weight at the edge, which most
                tests have
"""

edits = {
    "numpy_online": [
        (
            "left, right = window_size",
            """
left, right = window_size
left += left >= 0
""",
        ),
    ],
    "fp32_stats": [
        (
            "left, right = window_size",
            """
left, right = window_size
left += left >= 0
""",
        ),
    ],
    "triton_flash": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = None if left is None else left + 1
""",
        ),
    ],
    "triton_decode": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = None if left is None else left + 1
""",
        ),
    ],
}
