"""A window of 0 keys on a side is taken for none.

Kind            F
What is wrong   the sides are tested for truth, so that 0 means -1
Where seen      no public issue names it; zml/zml#763 was tested with -1 alone. The class is `x
                or default`, as for a scale of 0
Killed by       agreement
Survives        windows with at least one key on both sides
"""

edits = {
    "numpy_online": [
        (
            "left, right = window_size",
            """
left, right = window_size
left, right = left or -1, right or -1
""",
        ),
    ],
    "fp32_stats": [
        (
            "left, right = window_size",
            """
left, right = window_size
left, right = left or -1, right or -1
""",
        ),
    ],
    "triton_flash": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            "left, right = (None if w <= 0 else min(w, len_q + len_k) for w in window_size)",
        ),
    ],
    "triton_decode": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            "left, right = (None if w <= 0 else min(w, len_q + len_k) for w in window_size)",
        ),
    ],
}
