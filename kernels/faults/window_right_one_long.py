"""A window reaches one key further to the right than it says.

Kind            F
What is wrong   keys up to i + right + 1 are seen; with right = 0 the next key is no secret
Where seen      huggingface/transformers#39408 is the same on the left; ModelTC/LightLLM#1311
                lets future keys in at the right
Killed by       agreement
Survives        windows that are open on the right; is_causal besides; queries at the end of the
                keys
"""

edits = {
    "numpy_online": [
        (
            "left, right = window_size",
            """
left, right = window_size
right += right >= 0
""",
        ),
    ],
    "fp32_stats": [
        (
            "left, right = window_size",
            """
left, right = window_size
right += right >= 0
""",
        ),
    ],
    "triton_flash": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
right = None if right is None else right + 1
""",
        ),
    ],
    "triton_decode": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
right = None if right is None else right + 1
""",
        ),
    ],
}
