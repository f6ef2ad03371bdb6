"""The backward recomputes the weights without the window.

Kind            P
What is wrong   keys outside the window get P = exp(S - lse) of an lse that lacks them: the weights
                of a row sum to more than 1
Where seen      meta-pytorch/MSLK#263 (a window that was never passed on to the backward)
Killed by       gradients, value_gradient_sum
Survives        windows as wide as the sequence; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            'left, right = options["window_size"]',
            "left, right = -1, -1",
        ),
    ],
    "triton_backward": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            "left, right = None, None",
        ),
    ],
}
