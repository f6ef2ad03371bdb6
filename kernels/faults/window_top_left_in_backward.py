"""The backward aligns windows at the first query and key.

Kind            P
What is wrong   query i stands at key i, where the forward has it at i + Lk - Lq (in fp32_backward,
                for ALiBi too)
Where seen      no public issue names it for a backward; window_top_left is its counterpart in the
                forward pass
Killed by       gradients, value_gradient_sum
Survives        Lq = Lk, which most tests of a backward have
"""

edits = {
    "fp32_backward": [
        (
            "shift = len_k - len_q",
            "shift = 0",
        ),
    ],
    "triton_backward": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = None if left is None else left + len_k - len_q
right = None if right is None else right - len_k + len_q
""",
        ),
    ],
}
