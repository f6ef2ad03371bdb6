"""A window that ends at the query's own key ends as far on the right as on the left.

Kind            F
What is wrong   (left, 0) is passed on as (left, left)
Where seen      ModelTC/LightLLM#1311 and #1312 (w - 1 on both sides of a layer that is causal)
Killed by       agreement
Survives        is_causal besides, as usual in models; windows with right != 0; left = 0
"""

edits = {
    "numpy_online": [
        (
            "left, right = window_size",
            """
left, right = window_size
if right == 0:
    right = left
""",
        ),
    ],
    "fp32_stats": [
        (
            "left, right = window_size",
            """
left, right = window_size
if right == 0:
    right = left
""",
        ),
    ],
    "triton_flash": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
if right == 0:
    right = left
""",
        ),
    ],
    "triton_decode": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
if right == 0:
    right = left
""",
        ),
    ],
}
